"""The core: shared memory, counts and peers. Compiled, without the GIL on every hot path; knows no DDS and no asyncio."""
