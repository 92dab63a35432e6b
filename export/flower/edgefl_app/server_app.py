"""The server's half of the app: it runs where the SuperLink is, with edgefl installed."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from edgefl.contrib.flower.server import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the run that ``run.toml`` beside this file configures, with the devices of the federation."""
    serve(grid, context.run_config, Path(__file__).parent / "run.toml")
