// Loaded before MPI (LD_PRELOAD): counts what a process hands to MPI, as MPI's profiling interface allows, and leaves
// it as one line of JSON in $COUNT_MESSAGES/<rank>.json. Bulk exchanges are messages of one tag; all
// else is control.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

long long g_messages = 0;  // the one place for it: MPI's functions have no object to keep it in
long long g_bytes = 0;
long long g_control_calls = 0;
long long g_control_bytes = 0;

long long bytes_of(long long count, MPI_Datatype type) {
    int size = 0;
    PMPI_Type_size(type, &size);
    return count * size;
}

void count_control(long long count, MPI_Datatype type) {
    ++g_control_calls;
    g_control_bytes += bytes_of(count, type);
}

}  // namespace

extern "C" {

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
    constexpr int kBulkTag = 1;
    if (tag == kBulkTag) {
        ++g_messages;
        g_bytes += bytes_of(count, type);
    } else {
        count_control(count, type);
    }
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
    count_control(count, type);
    return PMPI_Ibcast(data, count, type, root, comm, request);
}

int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
    count_control(count, type);
    return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

int MPI_Iallgather(const void* from, int count, MPI_Datatype type, void* to, int to_count, MPI_Datatype to_type,
                   MPI_Comm comm, MPI_Request* request) {
    count_control(count, type);
    return PMPI_Iallgather(from, count, type, to, to_count, to_type, comm, request);
}

int MPI_Iallgatherv(const void* from, int count, MPI_Datatype type, void* to, const int counts[], const int offsets[],
                    MPI_Datatype to_type, MPI_Comm comm, MPI_Request* request) {
    count_control(count, type);
    return PMPI_Iallgatherv(from, count, type, to, counts, offsets, to_type, comm, request);
}

int MPI_Igather(const void* from, int count, MPI_Datatype type, void* to, int to_count, MPI_Datatype to_type, int root,
                MPI_Comm comm, MPI_Request* request) {
    count_control(count, type);
    return PMPI_Igather(from, count, type, to, to_count, to_type, root, comm, request);
}

int MPI_Finalize() {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char* directory = std::getenv("COUNT_MESSAGES");
    if (directory != nullptr) {
        const std::string path = std::string(directory) + "/" + std::to_string(rank) + ".json";
        if (std::FILE* file = std::fopen(path.c_str(), "w")) {
            std::fprintf(file,
                         "{\"messages\": %lld, \"bytes\": %lld, \"control_calls\": %lld, \"control_bytes\": %lld}\n",
                         g_messages, g_bytes, g_control_calls, g_control_bytes);
            std::fclose(file);
        }
    }
    return PMPI_Finalize();
}

}  // extern "C"
