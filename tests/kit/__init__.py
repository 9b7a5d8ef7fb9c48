"""What tests share: processes, faults, small trainings, data and workers."""
