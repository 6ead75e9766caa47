// Linked into the programs of the sanitizer build only. Open MPI unloads its plug-ins in MPI_Finalize; what they had
// allocated and not freed is then reported as a leak of an unknown module, which no suppression can name. This dlclose,
// which the dynamic linker finds before libc's, leaves them loaded, so that test/lsan.supp names them and leaks of our
// own are still reported.
extern "C" int dlclose(void* /*handle*/);

extern "C" int dlclose(void* /*handle*/) { return 0; }
