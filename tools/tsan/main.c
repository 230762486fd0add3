/* The harness's way in: no interpreter is started, and the linker drops whatever would need one. */
int run_harness(int argc, char **argv);

int main(int argc, char **argv) { return run_harness(argc, argv); }
