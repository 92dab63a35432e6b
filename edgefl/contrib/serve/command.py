"""The command ``serve``: Open a bundle in this computer's browser, to classify and train there."""

from pathlib import Path

import click

from edgefl.cli.console import busy, echo, note, print_json
from edgefl.cli.options import Command, json_option, option
from edgefl.cli.param_types import PATH, Within
from edgefl.cli.values import runs
from edgefl.util.extras import check_extra


@click.command(cls=Command)
@click.argument("bundle", type=PATH, shell_complete=runs)
@option("--port", default=8765, type=Within(int, 0, 65_535), metavar="N", help="Port; 0 chooses a free one.")
@option("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on.")
@json_option
def command(bundle: Path, port: int, host: str, as_json: bool) -> None:
    """Serve a page for the folder BUNDLE until Ctrl-C: classify, train on your own samples, download the update.

    The model and the samples stay in this computer's browser. The first call downloads onnxruntime-web with npm.

    \b
    edgefl serve runs/0001-fedhm-digits/bundle
    """
    check_extra("edgefl serve", "h11", "edgefl-sim[serve]")
    from edgefl.contrib.serve.files import bundle_addresses, page_addresses
    from edgefl.contrib.serve.runtime import installed, runtime
    from edgefl.contrib.serve.server import LOOPBACK, PageServer

    table = bundle_addresses(bundle)
    folder = installed()
    if folder is None:
        with busy("waiting for npm"):
            folder = runtime(note)
    table |= page_addresses(folder)
    with PageServer(host, port, table) as server:
        if host not in LOOPBACK:
            note(f"others may reach {host}; browsers on other computers refuse to run the page over plain http")
        try:
            if as_json:
                print_json({"url": server.url, "bundle": str(bundle)})
            else:
                echo(f"{server.url}  (Ctrl-C ends)")
            server.serve()
        except KeyboardInterrupt:
            note("ended")
