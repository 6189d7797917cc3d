// The Python face of the CPU kernels. Tensors arrive as addresses: batchgen/kernels/cpu checks shape, dtype and
// layout before it calls, so that no torch header is needed here. The interpreter lock is released while an op runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "dispatch.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

using Address = uintptr_t;
using Release = nb::call_guard<nb::gil_scoped_release>;

}  // namespace

NB_MODULE(_cpu, m) {
  using namespace batchgen;

  m.def("instruction_sets", &instruction_sets);
  m.def("use", &use, "name"_a);
  m.def("in_use", [] { return std::string(kernels().name); });
  m.def("set_threads", [](int n) {
    if (n < 1) throw std::invalid_argument("at least one thread");
    set_threads(n);
  }, "n"_a, Release());
  m.def("threads", &threads);

  m.def("has_amx", &has_amx);
  // `native`: on the matrix unit, where has_amx() says that there is one.
  m.def("linear", [](Address x, Address w, Address bias, Address residual, Address y, int64_t M, int64_t N, int64_t K, bool native) {
    (native ? amx_linear : kernels().linear)(
        {at<uint16_t>(x), at<uint16_t>(w), at<float>(bias), at<float>(residual), at<float>(y), M, N, K});
  }, Release());
  m.def("embed", [](Address ids, Address table, Address out, int64_t T, int64_t H) {
    kernels().embed({at<int32_t>(ids), at<uint16_t>(table), at<float>(out), T, H});
  }, Release());
  m.def("rms_norm", [](Address x, Address w, Address out, float eps, int64_t T, int64_t H) {
    kernels().rms_norm({at<float>(x), at<float>(w), at<uint16_t>(out), eps, T, H});
  }, Release());
  m.def("linear_silu_mul", [](Address x, Address w, Address out, int64_t M, int64_t I, int64_t K, bool native) {
    (native ? amx_linear_silu_mul : kernels().linear_silu_mul)(
        {at<uint16_t>(x), at<uint16_t>(w), at<uint16_t>(out), M, I, K});
  }, Release());
  m.def("rotary_store", [](Address qkv, Address q_norm, Address k_norm, Address cos, Address sin, Address positions, Address slots,
                           Address q, Address k_cache, Address v_cache, float eps, int64_t T, int64_t Hq, int64_t Hk, int64_t D) {
    kernels().rotary_store({at<float>(qkv), at<float>(q_norm), at<float>(k_norm), at<float>(cos), at<float>(sin),
                            at<int32_t>(positions), at<int64_t>(slots), at<uint16_t>(q), at<uint16_t>(k_cache),
                            at<uint16_t>(v_cache), eps, T, Hq, Hk, D});
  }, Release());
  m.def("attention", [](Address q, Address k_cache, Address v_cache, Address block_tables, Address query_start, Address positions,
                        Address out, float scale, int64_t S, int64_t blocks_per_sequence, int64_t Hq, int64_t Hk, int64_t D) {
    kernels().attention({at<uint16_t>(q), at<uint16_t>(k_cache), at<uint16_t>(v_cache), at<int32_t>(block_tables),
                         at<int32_t>(query_start), at<int32_t>(positions), at<uint16_t>(out), scale, S, blocks_per_sequence, Hq, Hk, D});
  }, Release());
  m.def("route", [](Address logits, Address bias, Address experts, Address weights, float scale, bool is_sigmoid, bool norm,
                    int64_t T, int64_t E, int64_t k) {
    kernels().route({at<float>(logits), at<float>(bias), at<int32_t>(experts), at<float>(weights), scale, is_sigmoid, norm, T, E, k});
  }, Release());
  m.def("experts", [](Address x, Address rows, Address slots, Address gate_up, Address down, Address y, int64_t P, int64_t S,
                      int64_t H, int64_t I, bool native) {
    (native ? amx_experts : kernels().experts)({at<uint16_t>(x), at<int32_t>(rows), at<int32_t>(slots), at<uint16_t>(gate_up),
                                                at<uint16_t>(down), at<float>(y), P, S, H, I});
  }, Release());
  m.def("combine", [](Address rows, Address weights, Address shared, Address residual, Address out, int64_t T, int64_t k, int64_t H) {
    kernels().combine({at<float>(rows), at<float>(weights), at<float>(shared), at<float>(residual), at<float>(out), T, k, H});
  }, Release());
  // `arrays` are the addresses of Sample's arrays, in the order of its members.
  m.def("sample", [](const std::vector<Address>& arrays, float reach, bool processed, int64_t R, int64_t V) {
    if (arrays.size() != 29) throw std::invalid_argument("sample takes 29 arrays");
    const Address* p = arrays.data();
    kernels().sample({at<float>(p[0]), at<uint64_t>(p[1]), at<int64_t>(p[2]), at<float>(p[3]), at<double>(p[4]), at<float>(p[5]),
                      at<int32_t>(p[6]), at<float>(p[7]), at<float>(p[8]), at<float>(p[9]), at<int32_t>(p[10]), at<int32_t>(p[11]),
                      at<float>(p[12]), at<int32_t>(p[13]), at<int32_t>(p[14]), at<int32_t>(p[15]), at<int32_t>(p[16]),
                      at<int32_t>(p[17]), at<int32_t>(p[18]), at<int32_t>(p[19]), at<int32_t>(p[20]), at<int32_t>(p[21]),
                      at<float>(p[22]), at<int32_t>(p[23]), at<float>(p[24]), at<uint8_t>(p[25]),
                      at<int64_t>(p[26]), at<int32_t>(p[27]), at<int32_t>(p[28]), reach, processed, R, V});
  }, Release());
  m.def("noise", [](uint64_t seed, int64_t position, uint32_t lane, Address out, int64_t n) {
    kernels().noise(seed, position, lane, at<float>(out), n);
  }, Release());
  m.def("elementary", [](int function, Address x, Address y, int64_t n) {
    kernels().elementary(function, at<float>(x), at<float>(y), n);
  }, Release());
}
