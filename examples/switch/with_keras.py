import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
from keras import layers
from keras.callbacks import BackupAndRestore, EarlyStopping

from data import test, train, val

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((20,)), layers.Dense(64, "relu"), layers.Dense(3)])
model.compile(
    optimizer=keras.optimizers.AdamW(3e-3, clipnorm=1.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
stop = EarlyStopping("val_loss", patience=3, restore_best_weights=True)
callbacks = [stop, BackupAndRestore("keras", delete_checkpoint=False)]
model.fit(*train, batch_size=100, epochs=20, validation_data=val, callbacks=callbacks, verbose=2)
print(f"test accuracy {model.evaluate(*test, verbose=0)[1]:.3f}")
