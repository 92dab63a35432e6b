"""The table of attacks and defences: which cells there are, which are refused, and what unfinished ones say."""

from __future__ import annotations

from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name


def table():
    return tool_of("paper_tables").table_of("robustness")


def test_every_cell_is_a_configuration_or_refused() -> None:
    module = table()
    runs = module.runs("full")
    assert len({(run.row, run.column, run.seed) for run in runs}) == len(runs)
    cells = {(run.row, run.column) for run in runs}
    for run in runs[:: len(runs) // 40]:
        assert run.config.rounds == 15
    for attack in module.ATTACKS:
        for defence, settings in module.defences_of(attack).items():
            for row, method in module.METHODS.items():
                why = module.refusal(method, module.ATTACKS[attack], settings.get("defence"))
                assert ((row, f"{attack}, {defence}") in cells) == (not why)
    for method in ("heterofl", "fedhm", "prism"):
        assert "weighs no client" in module.refusal(method, module.ATTACKS[module.INFLATED], None)


def test_only_inflated_samples_meet_a_cap() -> None:
    module = table()
    for attack in module.ATTACKS:
        assert (module.CAP in module.defences_of(attack)) == (attack == module.INFLATED)
    assert module.defences_of(module.INFLATED)["no defence"] == {"sample_cap": "off"}


def entry(column: str, seed: int, accuracy: float, **figures: object) -> dict[str, object]:
    settings = next(run.settings for run in table().runs("full") if (run.row, run.column) == ("FedAvg", column))
    own = {"accuracy": {"global": accuracy}, "samples": 72, "evaluated": 360, **figures}
    return {"row": "FedAvg", "column": column, "seed": seed, "local": False, "settings": settings, "figures": own, "edgefl": "0"}


def notes_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("- *n of", "- *not run*", "- *refused*"))]


def test_unfinished_cells_say_so_and_success_has_a_table_of_its_own() -> None:
    some = [entry("no attack, median", seed, value) for seed, value in ((0, 0.8), (1, 0.82), (2, 0.84))]
    some += [entry("backdoor ×5, 10 %, clip 1", 0, 0.9, attack_success={"global": 0.25})]
    text = table().render(some, "full")
    assert [note.split("*")[1] for note in notes_of(text)] == ["refused", "n of 3", "not run"]
    lines = text.splitlines()
    cells = [line for line in lines if line.startswith("| FedAvg |")]
    assert cells[0] == "| FedAvg | not run | not run | not run | 82.0 ± 2.0 | not run | not run | not run |"
    assert "| 90.0 (1 of 3) |" in cells[3]
    assert "| 25.0 (1 of 3) |" in cells[4]
    (heterofl,) = [line for line in lines if line.startswith("| HeteroFL | refused")]
    assert set(heterofl.split(" | ")[1:-1]) == {"refused"}


def test_a_complete_table_has_no_note_on_unfinished_cells() -> None:
    complete = [
        {**entry("no attack, median", run.seed, 0.8, attack_success={"global": 0.25}), "row": run.row, "column": run.column}
        for run in table().runs("full")
    ]
    text = table().render(complete, "full")
    assert [note.split("*")[1] for note in notes_of(text)] == ["refused"]
    assert "not run" not in text
    assert "They tie: **tiers cannot be compared here.** The full network alone is FedAvg." in text
