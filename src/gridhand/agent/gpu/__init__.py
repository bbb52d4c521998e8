"""The GPUs of this machine: discover them, watch their health, and choose what a job sees."""
