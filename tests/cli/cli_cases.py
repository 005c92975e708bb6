"""A file such as users write, small enough to train in a test."""

MODEL = """
import numpy as np, optax, jax.numpy as jnp, systolic as sl
import neighbour

def model_fn(model, features, labels, mode):
    y = model(features["x"])[:, 0]
    if mode is sl.Mode.PREDICT:
        return sl.EstimatorSpec(predictions={"y": y})
    return sl.EstimatorSpec(loss=(y - labels) ** 2, metrics={"error": jnp.abs(y - labels)})

def line(model_dir=None, target="cpu:1", slope=3.0, batch_size=4) -> sl.Estimator:
    model = (lambda key: {"w": jnp.zeros((1, 1))}, lambda params, x: x @ params["w"])
    return sl.Estimator(model, model_fn, optax.sgd(0.1), train_batch_size=batch_size,
                        config=sl.RunConfig(model_dir=model_dir, target=target, progress=False))

x = np.linspace(-1, 1, neighbour.COUNT, dtype="float32")

def train_input_fn():
    return {"x": x[:, None]}, 3 * x

def eval_input_fn():
    return {"x": x[:5, None]}, 3 * x[:5]

def wider_train_input_fn():
    return {"x": np.zeros((2, 7), "float32")}, np.zeros(2, "float32")

def seven_rows():
    return {"x": np.arange(7, dtype="float32")[:, None], "id": np.array(list("abcdefg"))}

made = line()
number = 7

def not_one():
    return 7

def needy(width):
    return line()

def broken():
    raise KeyError("colour")
"""


def write_model(folder):
    """Write ``line.py`` and the file it imports; returns its path as a string."""
    (folder / "neighbour.py").write_text("COUNT = 16\n")
    file = folder / "line_model.py"
    file.write_text(MODEL)
    return str(file)
