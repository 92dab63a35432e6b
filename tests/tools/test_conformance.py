"""The judges from outside: a fixed sample of their cases, what is stored of all of them, and how verdicts are found, kept and shown."""

from __future__ import annotations

import doctest
import sys
import warnings

import numpy as np
import onnx
import pytest
import torch
from requirements import REQUIREMENTS, require
from tool_modules import TOOLS, on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

from edgefl.errors import InputError
from edgefl.onnxgrad import training_step

JUDGES = sorted(path.stem for path in (TOOLS / "judges").glob("*.py") if "\nJUDGE = " in path.read_text(encoding="utf-8"))


def test_every_judge_is_on_the_list():
    assert sorted(tool_of("judges").NAMES) == JUDGES


@pytest.mark.parametrize("name", JUDGES)
def test_a_fixed_sample_of_a_database_is_neither_wrong_nor_crashes(name, monkeypatch):
    """In this process: importing the databases takes longer than the sample. A stand-in of another test is no database."""
    for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
        if not hasattr(sys.modules[module], "__file__"):
            monkeypatch.delitem(sys.modules, module)
    run = tool_of("judges.run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the databases, about their own values
        try:
            subjects = run.sampled(run.judge_of(name))
        except ModuleNotFoundError as error:
            require(*{str(error.name)} & REQUIREMENTS.keys())
            pytest.skip(f"{error.name} is not installed")
        tasks = [run.Task(name, subject, sample=True) for subject in subjects]
        found = [line for task in tasks for line in run.verdicts(task) if line.verdict]
    assert [line.subject for line in found] == subjects
    assert tool_of("judges.store").faults(found) == []
    assert sum(line.verdict == "equal" for line in found) >= max(1, len(subjects) // 3)
    assert all(line.reason for line in found if line.verdict != "equal")


def test_the_page_has_what_is_stored(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["conformance.py", "--no-run", "--check"])
    tool_of("conformance").main()  # exits with a message otherwise


@pytest.mark.parametrize("name", JUDGES)
def test_nothing_stored_is_wrong_or_has_crashed(name):
    store = tool_of("judges.store")
    stored = store.read(store.RESULTS / f"{name}.jsonl")
    if stored is None:
        pytest.skip(f"the page has no results of {name}: python tools/conformance.py --judges {name} --write")
    assert stored.lines
    assert store.faults(stored.lines) == []


def test_a_wrong_case_and_a_crash_are_faults():
    store = tool_of("judges.store")
    lines = [store.Line("add", str(i), kind, "why") for i, kind in enumerate(tool_of("judges.verdict").KINDS)]
    assert [line.verdict for line in store.faults(lines)] == ["wrong", "crashed"]


def refuses():
    raise InputError("Foo has no rule")


def fails():
    raise KeyError("x")


def hangs():
    while True:
        pass


@pytest.mark.parametrize(
    ("judge", "kind", "reason"),
    [
        (refuses, "refused", "Foo has no rule"),
        (fails, "crashed", "KeyError: 'x' (the judge)"),
        (hangs, "crashed", "no result after 0.05 processor seconds"),
    ],
)
def test_what_a_case_raises_is_a_verdict(judge, kind, reason):
    verdict = tool_of("judges.verdict")
    assert verdict.judged(verdict.Case("case", judge), limit_s=0.05) == verdict.Verdict(kind, reason)


def test_what_the_other_side_cannot_compute_is_skipped():
    verdict = tool_of("judges.verdict")

    def judge():
        with verdict.reference("torch"):
            raise RuntimeError("singular")

    assert verdict.judged(verdict.Case("case", judge)) == verdict.Verdict("skipped", "torch: singular")


def test_a_wrong_step_is_seen():
    """A gradient that is one per cent too large."""
    steps, network, batch = tool_of("judges.steps"), torch.nn.Linear(3, 2), [torch.linspace(-1, 1, 12).reshape(4, 3)]
    graphs = training_step(network, larger, {"x": batch[0][:2]})
    tensors = steps.tensors_of(network)
    right, wrong = (steps.by_torch(network, loss, tensors, [batch], 0.1, torch.float32) for loss in (larger, usual))
    assert steps.compared(network, larger, graphs, tensors, [batch], 0.1, right).kind == "equal"
    assert steps.compared(network, usual, graphs, tensors, [batch], 0.1, wrong).kind == "wrong"


def usual(network, x):
    return network(x).square().mean()


def larger(network, x):
    return 1.01 * usual(network, x)


def test_a_process_that_dies_costs_one_case(tmp_path, monkeypatch):
    run = tool_of("judges.run")
    (tmp_path / "judges").mkdir()
    monkeypatch.setattr(run, "TOOL", tmp_path / "tool.py")
    (tmp_path / "tool.py").write_text(
        f"import sys\nsys.path.insert(0, {str(TOOLS)!r})\nimport os\nfrom judges import run\nfrom judges.verdict import *\n"
        "made = [Case('good', lambda: EQUAL), Case('bad', lambda: os._exit(3)), Case('last', lambda: EQUAL)]\n"
        "run.judge_of = lambda name: Judge('t', 'a', (), lambda: ['s'], lambda subject: made)\nrun.work()\n"
    )
    found = []
    run.run([run.Task("any", "s")], 1, lambda task, line: found.append((line.case, line.verdict)))
    assert found == [("good", "equal"), ("bad", "crashed"), ("last", "equal")]


def test_a_stopped_run_resumes_and_another_code_begins_anew(tmp_path):
    store, path = tool_of("judges.store"), tmp_path / "work" / "a.jsonl"
    first = {"code": "1", "commit": "c", "versions": {"onnx": "1"}}
    assert store.begun(path, first) == set()
    with path.open("a") as file:
        file.write('{"subject": "Relu", "case": "one", "verdict": "equal"}\n{"subject": "Relu", "ca')
    assert store.begun(path, first) == {("Relu", "one")}
    assert path.read_text().endswith('"equal"}\n')
    assert store.begun(path, {**first, "code": "2"}) == set()
    with path.open("a") as file:
        file.write('{"subject": "B", "case": "x", "verdict": "equal"}\n{"subject": "A", "case": "x", "verdict": "equal"}\n')
    store.finish(path, tmp_path / "a.jsonl", ["A", "B"])
    assert [line.subject for line in store.read(tmp_path / "a.jsonl").lines] == ["A", "B"]
    assert not path.exists()


def test_a_subject_that_is_judged_again_replaces_what_was_stored_of_it(tmp_path):
    store, page, path = tool_of("judges.store"), tool_of("judges.page"), tmp_path / "a.jsonl"
    lines = [store.Line(subject, case, "wrong", "why") for subject in ("A", "B", "C") for case in ("x", "y")]
    path.write_text(store.text_of({"title": "t", "commit": "old", "versions": {}}, lines))
    again = [store.Line("B", "x", "equal", commit="new"), store.Line("B", "z", "equal", commit="new")]
    store.amend(path, again)
    found = store.read(path)
    assert found.lines == (*lines[:2], *again, *lines[4:])
    assert page._commits(found) == "old; 2 cases again at new"
    with pytest.raises(FileNotFoundError, match="no run is stored; judge everything first"):
        store.amend(tmp_path / "b.jsonl", again)


def test_a_step_of_which_torch_s_float32_has_no_correct_digit_is_skipped():
    """e^A of matrices with entries of ±20."""
    steps, networks = tool_of("judges.steps"), torch.nn.ParameterDict({"a": torch.zeros(5, 5)})
    signs = torch.tensor([[-1, -1, -1, -1, -1], [1, -1, -1, 1, -1], [1, 1, 1, 1, -1], [1, -1, 1, -1, 1], [1, -1, -1, 1, 1]])
    tensors = {"a": 20.0 * signs}
    single, exact = (
        steps.by_torch(networks, lambda own: torch.matrix_exp(own["a"]).sum(), tensors, [[]], 1.0, kind)[0]
        for kind in (torch.float32, torch.float64)
    )
    assert not steps.has_digits(single["loss"], exact["loss"], np.zeros(()))
    assert steps.has_digits(exact["loss"], exact["loss"], np.zeros(()))


def test_the_tables_count_subjects_by_their_worst_case():
    page, store = tool_of("judges.page"), tool_of("judges.store")
    lines = (
        store.Line("linalg.inv", "0", "refused", "aten.linalg_inv_ex.default has no ONNX form"), store.Line("add", "0", "equal"),
        store.Line("add", "1", "equal"), store.Line("mul", "0", "equal"), store.Line("mul", "1", "wrong", "differs by 0.5"),
        store.Line("rand", "0", "skipped", "torch: the result is random"),
    )  # fmt: skip
    found = store.Stored({"versions": {"torch": "2.13.0"}, "commit": "abc"}, lines)
    text = page.overview({"operators": found}, {"operators": "torch's operators"}, {"torch": "2.13.0"})
    assert "| torch's operators | 1 | 0 | 1 | **1** | 0 | 1 | 33.3 % | 3 of 5 | torch 2.13.0 | abc |" in text
    assert "| modules | not run |" in text
    text = page.details(found)
    assert "| linalg | 0 | 0 | 1 | 0 | 0 | 0 |" in text
    assert "| aten.linalg_inv_ex.default has no ONNX form | 1 | linalg.inv (1) |" in text


def test_the_page_says_when_a_database_is_of_another_version_than_the_tested_one():
    page, store = tool_of("judges.page"), tool_of("judges.store")
    found = store.Stored({"versions": {"torch": "0.1"}, "commit": "abc"}, (store.Line("add", "0", "equal"),))
    text = page.overview({"operators": found}, {"operators": "torch's operators"}, store.tested())
    assert f"torch 0.1 (**another version**: edgefl is tested with {store.tested()['torch']})" in text


def test_a_judge_without_its_package_is_skipped_by_name(monkeypatch, capsys):
    tool = tool_of("conformance")

    def missing(name):
        raise ModuleNotFoundError("No module named 'expecttest'", name="expecttest")

    monkeypatch.setattr(tool, "judge_of", missing)
    assert tool.found_judges(["operators"]) == {}
    assert capsys.readouterr().err == "operators: skipped, expecttest is not installed\n"


def test_a_random_operator_is_skipped():
    """Its database gives it the same seed each time."""
    operators, verdict = tool_of("judges.operators"), tool_of("judges.verdict")
    (case,) = operators.cases("nn.functional.multi_head_attention_forward")
    assert verdict.judged(case) == verdict.Verdict("skipped", "torch: the result is random")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's command line
def test_an_optimizer_that_differs_from_flower_s_is_seen(monkeypatch):
    require("flower")
    flower, verdict = tool_of("judges.flower"), tool_of("judges.verdict")
    kind, options, name, lr = flower.STRATEGIES["FedAvgM"]
    monkeypatch.setitem(flower.STRATEGIES, "FedAvgM", (kind, {**options, "server_momentum": 0.8}, name, lr))
    (case,) = flower.cases("FedAvgM")
    found = verdict.judged(case)
    assert found.kind == "wrong"
    assert found.reason.endswith("after round 2")


def test_a_size_that_is_not_the_published_one_is_seen():
    published, verdict = tool_of("judges.published"), tool_of("judges.verdict")
    assert published._is(9_622_090, 9_600_000, "parameters", 2) == verdict.EQUAL
    assert published._is(9_652_090, 9_600_000, "parameters", 2).kind == "wrong"


def test_numbers_of_16_bits_are_compared_within_their_rounding():
    reading = tool_of("judges.reading")
    add = onnx.helper.make_node("Add", ["a", "b"], ["y"])
    half = onnx.TensorProto.FLOAT16
    values = [onnx.helper.make_tensor_value_info(name, half, [2]) for name in "aby"]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([add], "g", values[:2], values[2:]), opset_imports=[onnx.helper.make_opsetid("", 20)]
    )
    a, b = np.array([1.0, 0.3], np.float16), np.array([0.001, 0.6], np.float16)
    assert reading.read(model, [a, b], [(a + b) * np.float16(1.001)], 1e-4).kind == "equal"
    assert reading.read(model, [a, b], [(a + b) * np.float16(1.01)], 1e-4).kind == "wrong"


@pytest.mark.parametrize("name", ["verdict", "steps", "page", "published"])
def test_examples(name):
    found = doctest.testmod(tool_of(f"judges.{name}"))
    assert (found.failed, found.attempted > 0) == (0, True)
