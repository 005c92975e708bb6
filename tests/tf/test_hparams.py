"""HParams: values, their types, and what overrides them."""

from __future__ import annotations

import copy
import json

import pytest

from systolic import InputError
from systolic.tf.contrib._hparams import HParams, parse_values


def params():
    return HParams(rate=0.1, steps=5, name="small", layers=[64, 32], dropout=True)


def test_values_are_attributes():
    made = params()
    assert (made.rate, made.steps, made.layers) == (0.1, 5, [64, 32])
    made.rate = 0.5
    made.add_hparam("depth", 3)
    assert made.values() == {"rate": 0.5, "steps": 5, "name": "small", "layers": [64, 32], "dropout": True, "depth": 3}
    assert "depth" in made
    assert made.get("depth") == 3
    assert made.get("nothing", 7) == 7
    made.del_hparam("depth")
    assert "depth" not in made
    assert copy.deepcopy(made).values() == made.values()
    assert str(HParams(b=1, a="x")) == "[('a', 'x'), ('b', 1)]"


def test_text_overrides_with_the_types_that_values_had():
    made = params().parse("rate=1,steps=7,name=large one,layers=[1, 2,3],dropout=False")
    assert made.values() == {"rate": 1.0, "steps": 7, "name": "large one", "layers": [1, 2, 3], "dropout": False}
    assert type(made.rate) is float
    assert params().parse("layers[1]=8,rate=2e-3").values()["layers"] == [64, 8]
    assert params().parse("").values() == params().values()
    assert params().parse("name=a=b").name == "a=b"
    assert params().parse("dropout=0").dropout is False


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("speed=1", r"there is no 'speed'; there are rate, steps, name, layers, dropout"),
        ("steps=1.5", r"parse\(steps\): saw '1.5', wanted a value of type int"),
        ("dropout=maybe", r"parse\(dropout\): saw 'maybe', wanted a value of type bool"),
        ("steps", r"saw 'steps', wanted name=value"),
        ("steps=1,steps=2", r"steps is set twice"),
        ("layers[0]=1,layers[0]=2", r"layers\[0\] is set twice"),
        ("layers[2]=1", r"saw layers\[2\], of a list with 2 items"),
        ("layers=3", r"HParams\(layers\): saw 3, wanted a list"),
        ("steps=[3]", r"HParams\(steps\): saw \[3\], wanted one value"),
    ],
)
def test_text_that_does_not_fit_is_refused(text, told):
    with pytest.raises(InputError, match=told):
        params().parse(text)


def test_a_dict_and_json_override():
    made = params().override_from_dict({"rate": 1, "layers": (3,)})
    assert (made.rate, made.layers) == (1.0, [3])
    assert json.loads(made.to_json()) == made.values()
    assert params().parse_json(made.to_json()).values() == made.values()
    with pytest.raises(InputError, match=r"HParams\(steps\): saw 'many', wanted a value of type int"):
        made.override_from_dict({"steps": "many"})
    with pytest.raises(InputError, match=r"HParams\(steps\): saw True, wanted a value of type int"):
        made.set_hparam("steps", True)
    made.add_hparam("function", len)
    assert "function" not in json.loads(made.to_json())


def test_a_name_is_given_once_and_a_list_has_an_item():
    with pytest.raises(InputError, match=r"HParams\(rate\): the name is taken"):
        params().add_hparam("rate", 1)
    with pytest.raises(InputError, match=r"HParams\(values\): the name is taken"):
        HParams(values=1)
    with pytest.raises(InputError, match=r"HParams\(layers\): saw an empty list"):
        HParams(layers=[])


def test_values_are_read_from_text_alone():
    assert parse_values("a=1,b[2]=x,c=[1.5]", {"a": int, "b": str, "c": float}) == {"a": 1, "b": {2: "x"}, "c": [1.5]}
    assert parse_values("a=1,z=3", {"a": int}, ignore_unknown=True) == {"a": 1}
