"""The core: shared memory, counts and peers. Compiled, no GIL on any hot path; knows no DDS and no asyncio."""
