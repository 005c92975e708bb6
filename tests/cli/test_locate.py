"""FILE.py:NAME and the data that goes with it."""

from __future__ import annotations

import sys

import pytest
from cli_cases import write_model

import systolic as sl
from systolic.cli._locate import locate, parse_arguments


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = write_model(tmp_path)
    yield file
    for name in ("line_model", "neighbour"):
        sys.modules.pop(name, None)


def test_a_function_is_called_with_the_arguments_given(model):
    located = locate(f"{model}:line", {"batch_size": 8})
    assert located.estimator.batch_sizes[sl.Mode.TRAIN] == 8


def test_an_estimator_is_taken_as_it_is(model):
    assert locate(f"{model}:made").estimator is locate(f"{model}:made").estimator


def test_the_most_particular_input_function_is_found_first(model):
    located = locate(f"{model}:line")
    assert located.input_fn("train").__name__ == "train_input_fn"
    assert locate(f"{model}:line").input_fn("predict").__name__ == "eval_input_fn"
    located = type(located)(located.estimator, located.module, "wider")
    assert located.input_fn("train").__name__ == "wider_train_input_fn"
    assert located.input_fn("eval").__name__ == "eval_input_fn"


def test_data_is_named_in_the_same_file_or_another(model, tmp_path):
    other = tmp_path / "other_data.py"
    other.write_text("def rows():\n    return [1]\n")
    located = locate(f"{model}:line")
    assert located.input_fn("train", "seven_rows").__name__ == "seven_rows"
    assert located.input_fn("train", f"{other}:rows")() == [1]
    sys.modules.pop("other_data")


def test_a_file_whose_name_is_taken_is_imported_beside_it(tmp_path):
    file = tmp_path / "json.py"
    file.write_text("import systolic as sl\ndef rows(): return 5\n")
    import json

    with pytest.raises(sl.InputError, match="wanted an Estimator"):
        locate(f"{file}:rows")
    assert sys.modules["json"] is json
    sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lime", "has no 'lime'; nearest: line"),
        ("number", "is a value of type int, wanted an Estimator or a function that makes one. It has"),
        ("not_one", "returned a value of type int, wanted an Estimator"),
        ("needy", "needs a value for width; give --arg width=VALUE"),
        ("broken", "raised KeyError at line 40 of line_model.py: 'colour'"),
        (
            "",
            "without a name, wanted one of an Estimator. It has\n  Estimators: made\n  functions that make one: line\n",
        ),
        ("lime", "\n  input functions: train_input_fn, eval_input_fn, wider_train_input_fn\n  other functions: "),
        ("lime", "model_fn(model, features, labels, mode), seven_rows, not_one, needy(width), broken"),
        ("needy", "give --arg width=VALUE, or a default. It has\n  Estimators: made"),
        ("line,made", "saw the name 'line,made', wanted one name"),
        ("line:made", "saw the name 'line:made', wanted one name"),
    ],
)
def test_a_bad_name_is_explained(model, name, message):
    with pytest.raises(sl.InputError) as caught:
        locate(f"{model}:{name}")
    assert message in str(caught.value)


def test_an_unknown_argument_names_those_there_are(model):
    with pytest.raises(sl.InputError, match="no parameter 'wdth'; it takes model_dir, target, slope, batch_size"):
        locate(f"{model}:line", {"wdth": 3})
    with pytest.raises(sl.InputError, match="is an Estimator, which is made already"):
        locate(f"{model}:made", {"width": 3})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "there is no file"),
        ("model.txt", "", "wanted a Python file"),
        ("raises.py", "x = 1\nimport no_such_package_at_all\n", "raised ModuleNotFoundError at line 2 of raises.py"),
        ("syntax.py", "def f(:\n", "raised SyntaxError at line 1 of syntax.py"),
    ],
)
def test_a_bad_file_is_explained(tmp_path, monkeypatch, name, text, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(sl.InputError) as caught:
        locate(f"{tmp_path / name}:f")
    assert message in str(caught.value)


def test_a_file_without_data_says_what_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "no_data.py"
    file.write_text("import systolic as sl\ndef f():\n    return sl.Estimator((abs, abs), abs, train_batch_size=1)\n")
    with pytest.raises(sl.InputError) as caught:
        locate(f"{file}:f").input_fn("predict")
    assert "f_predict_input_fn, predict_input_fn, f_eval_input_fn, eval_input_fn" in str(caught.value)
    sys.modules.pop("no_data")


def test_arguments_are_literals_or_else_strings():
    assert parse_arguments(["width=64", "name=x", "rate=1e-3", "sizes=(1, 2)"], model_dir=None, target="cpu") == {
        "width": 64,
        "name": "x",
        "rate": 1e-3,
        "sizes": (1, 2),
        "target": "cpu",
    }
    with pytest.raises(sl.InputError, match="wanted NAME=VALUE"):
        parse_arguments(["width"])
