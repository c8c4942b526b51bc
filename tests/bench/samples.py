"""Records of benchmarks that nobody ran, with times that make ratios easy to check."""

from resolvent.bench.record import PASSIVE, PLAIN, BenchRecord, Host, Kind, Machine, Measurement, Missing
from resolvent.train.record import Environment

LIMITS = Machine(matmul_gflops=100.0, l1_gbs=400.0, l2_gbs=200.0, dram_gbs=20.0)
ENVIRONMENT = Environment("3.11.7", {"resolvent": "0.1.0", "torch": "2.13.0"}, "Linux x86_64, 2 CPUs", "abc1234")


def host(policy: str = PLAIN, cpu: str = "A CPU (znver4)", threads: int = 2) -> Host:
    return Host(cpu, ("avx2", "avx512f"), threads, policy)


def record(kind: Kind, shape: str, *measurements: Measurement, policy: str = PLAIN, missing: tuple[Missing, ...] = ()
) -> BenchRecord:  # fmt: skip
    return BenchRecord(kind, shape, 3, host(policy), ENVIRONMENT, LIMITS, measurements, missing)


def timed(case: str, workload: str, n: int, seconds: float, peer: bool = False, **counts: float | None) -> Measurement:
    return Measurement.of([0.9 * seconds, seconds, 1.2 * seconds], case, workload, n, n, peer=peer, **counts)


def operator(policy: str = PLAIN, slower: float = 1.0) -> BenchRecord:
    return record(
        "operator",
        "batch 1, 12 heads of 64, float32",
        *(
            timed(case, workload, n, times * seconds * slower, peer=case == "sdpa", share=0.5)
            for workload, times in (("forward", 1), ("forward and backward", 4))
            for n in (64, 128)
            for case, seconds in (("sdpa", 0.08), ("exponential", 0.01), ("quadratic+cache", 0.02))
        ),
        policy=policy,
    )


def decoding() -> BenchRecord:
    cases = (("sdpa", 4e-3, True), ("exponential", 1e-4, False), ("quadratic+cache", 8e-5, False))
    return record("decode", "batch 1, 12 heads of 64, float32", *(
        timed(case, "one token", 4096, seconds, peer=peer, cache_bytes=2**21) for case, seconds, peer in cases
    ))  # fmt: skip


def generation(shape: str = "tiny", parameters: int = 800_000) -> BenchRecord:
    cases = (("HF GPT-2, dynamic", 0.030), ("HF GPT-2, static", 0.015), ("quadratic+cache", 0.005))
    measured = [
        timed(
            case,
            workload,
            n,
            seconds * n / 16,
            peer=case.startswith("HF"),
            parameters=parameters,
            cache_bytes=3 * 2**20,
        )
        for workload, lengths in (("generate()", (16,)), ("batch 1", (16, 1024)), ("batch 8, ragged", (16, 1024)))
        for n in lengths
        for case, seconds in cases
        if (case, workload, n) != ("HF GPT-2, static", "batch 8, ragged", 1024)
    ]
    reason = "batch 8, ragged after 1,024: caches would take more than 8.0 GiB together"
    return record("generate", shape, *measured, missing=(Missing("HF GPT-2, static", reason),))


def training(seconds: float = 0.4, policy: str = PLAIN) -> BenchRecord:
    cases = (("attention", 2 * seconds, True), ("HF GPT-2", 3 * seconds, True), ("quadratic+cache", seconds, False))
    return record("training", "tiny", *(
        timed(case, "batch 1", n, took, peer=peer, parameters=800_000, peak_bytes=n * 2**20, share=0.25)
        for n in (64, 256) for case, took, peer in cases
    ), policy=policy)  # fmt: skip


def everything() -> list[BenchRecord]:
    return [operator(), operator(PASSIVE, slower=0.5), decoding(), generation(), training()]
