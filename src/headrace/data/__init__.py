"""Where minibatches come from: tables, readers and sources.

Order is import order: `macrobatch source draws mix packing reader pages arrays views maps epochs codes schema arrow
files ctf adapt torch compose`. `adapt` looks into `files` and `torch` when it meets such data.
"""
