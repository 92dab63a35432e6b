"""The command ``serve``: open a bundle in the browser of this computer, to classify and train there."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes one that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address of this computer to listen at.")
def command(bundle: Path, port: int, host: str) -> None:
    """Serve a page for BUNDLE to this computer's browser, until Ctrl-C: classify, train on samples of your own, download the update.

    The model and the samples stay in the browser. The first call fetches onnxruntime-web with npm.
    """
    from edgefl.serve.files import bundle_addresses, page_addresses
    from edgefl.serve.runtime import runtime
    from edgefl.serve.server import LOOPBACK, Server

    def say(message: str) -> None:
        click.echo(message, err=True)

    table = bundle_addresses(bundle)
    table |= page_addresses(runtime(say))
    with Server(host, port, table) as server:
        if host not in LOOPBACK:
            say(f"{host} may be reached by others, and browsers there will refuse to run the page over plain http")
        try:
            click.echo(f"{server.url}  (Ctrl-C ends)")
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
