# %% [markdown]
# Sequence classification from CNTK's text format: sparse words -> embedding -> LSTM -> last state -> dense.

# %%
import random

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

import headrace as hr

# %% A file as CNTK has it: a line for each word, a label with the first one. Sequences differ in length.
WORDS, CLASSES = 1000, 5
draw = random.Random(0)


def write(path, sequences):
    with open(path, "w") as file:
        for number in range(sequences):
            label = draw.randrange(CLASSES)
            target = " ".join(str(int(label == k)) for k in range(CLASSES))
            for k in range(draw.randint(3, 15)):
                topic = draw.random() < 0.4  # two words of five tell what the sequence is about
                word = draw.randrange(20) * CLASSES + label if topic else draw.randrange(100, WORDS)
                file.write(f"{number} |x {word}:1" + (f" |y {target}\n" if k == 0 else "\n"))


write("train.ctf", 2000)
write("test.ctf", 500)

# %%
streams = [hr.Stream("x", (WORDS,), layout="sparse", sequence=True), hr.Stream("y", (CLASSES,))]
train, test = hr.open_ctf("train.ctf", streams), hr.open_ctf("test.ctf", streams)
print(train.rows(0, 3)["x"].ids.padded())


# %%
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.recur, self.dense = nn.Embedding(WORDS, 32), nn.LSTM(32, 48), nn.Linear(48, CLASSES)

    def forward(self, words):  # a PackedSequence of word numbers
        embedded = PackedSequence(
            self.embed(words.data), words.batch_sizes, words.sorted_indices, words.unsorted_indices
        )
        _, (last, _) = self.recur(embedded)
        return self.dense(last[0])


# %%
torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=50, metrics=["accuracy"], inputs="x.ids.packed")
history = trainer.fit(train, test=test, epochs=5)
print(f"test accuracy {history.last['test/accuracy']:.3f}")
