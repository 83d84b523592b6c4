"""The program of codec processes and its environment, for those who start them."""

from paddlepool.engine.process.environment import malloc_settings

SANDBOX = "paddlepool.tasks.codecs.sandbox"
TARGET = f"{SANDBOX}:open_sandbox"

# By default, glibc returns a picture's memory to the system after each step, and the next step gets
# zeroed pages. With these settings, glibc keeps blocks of up to 32 MiB. For larger ones it asks for
# huge pages, because mapping small ones takes 10 ms for 12 MP.
# The second thread of a large picture uses the same heap, because another one reserves 64 MiB.
ENVIRONMENT = malloc_settings(
    "hugetlb=1",
    "mmap_threshold=33554432",
    "trim_threshold=67108864",
    "top_pad=16777216",
    "arena_max=1",
)
