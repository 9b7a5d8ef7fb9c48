# %% [markdown]
# A program for CNTK: digits from a text file, a session with checkpoints and cross validation. `cntk_native.py` is the
# same training in headrace's own words. Of CNTK's own, only the import was changed.

# %%
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import headrace.compat.cntk as C


# %% The text file: one image on a line, and its class as a one-hot vector.
def write_digits(folder):
    digits = load_digits()
    for name, part in (("train", slice(0, 1500)), ("test", slice(1500, None))):
        lines = [
            f"|pixels {' '.join(map(str, row))} |digit {' '.join(map(str, np.eye(10, dtype=int)[label]))}\n"
            for row, label in zip(digits.data[part] / 16, digits.target[part], strict=True)
        ]
        Path(folder, f"{name}.ctf").write_text("".join(lines))


def source(path, **limits):
    streams = C.io.StreamDefs(
        pixels=C.io.StreamDef(field="pixels", shape=64), digit=C.io.StreamDef(field="digit", shape=10)
    )
    return C.io.MinibatchSource(C.io.CTFDeserializer(str(path), streams), randomize=False, **limits)


# %% The training: three sweeps in minibatches of 50, a rate for each sample, momentum without unit gain.
def main(folder):
    write_digits(folder)
    pixels, digit = C.input_variable(64), C.input_variable(10)
    z = C.layers.Dense(10, init=0)(pixels)
    loss, error = C.cross_entropy_with_softmax(z, digit), C.classification_error(z, digit)
    rate = C.learning_parameter_schedule_per_sample(0.002)
    learner = C.momentum_sgd(z.parameters, rate, C.momentum_schedule(0.9), unit_gain=False)
    trainer = C.Trainer(z, (loss, error), [learner], [C.logging.ProgressPrinter(num_epochs=3)])

    train, test = source(Path(folder, "train.ctf"), max_sweeps=3), source(Path(folder, "test.ctf"), max_sweeps=1)
    errors = []
    C.training_session(
        trainer=trainer,
        mb_source=train,
        mb_size=50,
        model_inputs_to_streams={pixels: train.streams.pixels, digit: train.streams.digit},
        progress_frequency=1500,
        checkpoint_config=C.CheckpointConfig(str(Path(folder, "digits")), frequency=1500),
        cv_config=C.CrossValidationConfig(test, 1500, 297, lambda index, error, samples, count: errors.append(error)),
    ).train()
    return [p.value for p in z.parameters], errors


# %%
if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else ".")[1])
