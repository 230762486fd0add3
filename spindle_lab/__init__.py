"""What only development needs: the simulator, chaos runs, the paper's evaluation, benchmarks."""
