"""What ``bench.py`` measures of edgefl's speed: whole commands, rounds beside bare loops, growth; and the tables and plots of it."""
