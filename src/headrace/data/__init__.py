"""Where minibatches come from: tables, readers and sources."""
