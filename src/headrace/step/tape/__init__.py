"""The tape: forward and backward of a batch recorded once, and replayed in planned memory with the same bits."""
