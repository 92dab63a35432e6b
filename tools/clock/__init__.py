"""What tools/validate_clock.py is made of.

- ``rows``: the measured steps of raspberry-pi-steps.csv, or of another file.
- ``networks``: the work of their networks by kind, in work.json.
- ``boards``: the costs of the measured boards, fitted to the rows for it, as tables of their profiles.
- ``errors``: predicted over measured seconds, in figures and as a page's table.
"""
