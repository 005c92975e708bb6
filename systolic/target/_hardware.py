"""What one device of each TPU generation can do, with the source of every number.

A *device* is what JAX shows: one TensorCore of a v2, v3 or TPU7x chip (each of those chips is two devices), a whole
chip of the others. Numbers that the sources give per chip are divided accordingly. A number without a source is None.

Peak rates are the makers' figures, not what a program reaches; published matrix products get 0.8 to 0.9 of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

_MIB = 1 << 20

_CLOUD = "Google Cloud TPU documentation, docs.cloud.google.com/tpu/docs/{page}"
_JAX = "jax 0.10.2, jax/_src/pallas/mosaic/tpu_info.py"
_BOOK = "How to Scale Your Model (jax-ml.github.io/scaling-book/tpus), one-way ICI bandwidth per link"
_LIBTPU = "libtpu 0.0.42.1: the limit in its out-of-memory refusals, narrowed to 4 MiB by the largest argument it takes"
_F32 = "peak_bf16 / 6: the MXU multiplies bfloat16; a float32 product at jax.lax.Precision.HIGHEST takes six passes"
_CLOCK = "peak_bf16 / FLOP per cycle, from libtpu 0.0.42.1's estimated cycles of a 4096x4096x4096 bfloat16 product"


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One device of a TPU generation.

    Attributes:
        generation: ``"v5e"``.
        device_name: what ``jax.Device.device_kind`` says, ``"TPU v5 lite"``.
        cores_per_device: TensorCores in the device (v4 and v5p join two).
        devices_per_chip: devices that share a chip and its ICI links.
        hbm_bytes: HBM that a program can use, in bytes: less than what is fitted.
        vmem_bytes: vector memory of the device, all its TensorCores together, in bytes.
        peak_bf16: FLOP/s of bfloat16 matrix products (a multiply-add counts 2).
        peak_int8: OP/s of int8 matrix products; None where there is no faster int8 rate or it is not published.
        peak_f32: FLOP/s of float32 matrix products at ``Precision.HIGHEST``; at the default precision, peak_bf16 holds.
        hbm_bandwidth: bytes/s between HBM and the device.
        ici_links: ICI links of the chip.
        ici_bandwidth: bytes/s of one ICI link in one direction.
        sparse_cores: SparseCores of the device.
        mxu_size: rows and columns of the systolic array: a matrix dimension below it wastes the array.
        flops_per_cycle: bfloat16 FLOP of the device in one clock cycle.
        clock_hz: clock of the TensorCore, in Hz.
        source: for each number above, where it is from.
    """

    generation: str
    device_name: str
    cores_per_device: int
    devices_per_chip: int
    hbm_bytes: int
    vmem_bytes: int
    peak_bf16: float
    peak_int8: float | None
    peak_f32: float
    hbm_bandwidth: float
    ici_links: int
    ici_bandwidth: float | None
    sparse_cores: int | None
    mxu_size: int
    flops_per_cycle: int
    clock_hz: float
    source: Mapping[str, str] = dataclasses.field(compare=False, repr=False)

    def __reduce__(self) -> tuple:
        """Pickle by generation: the table is the same in every process, and a mapping proxy cannot be pickled."""
        return _of_generation, (self.generation,)


def _of_generation(generation: str) -> Hardware:
    return HARDWARE[generation]


def _hardware(
    generation: str,
    device_name: str,
    *,
    cores: int = 1,
    devices_per_chip: int = 1,
    hbm_mib: int,
    vmem_mib: int,
    bf16: float,
    int8: float | None,
    hbm_bandwidth: float,
    links: int,
    ici: float | None,
    sparse_cores: int | None,
    mxu_size: int,
    flops_per_cycle: int,
    source: dict[str, str],
) -> Hardware:
    """One row; ``bf16``, ``int8``, ``hbm_bandwidth`` and ``sparse_cores`` are per chip, as published."""
    page = _CLOUD.format(page=generation)
    sources = {
        "cores_per_device": _JAX,
        "devices_per_chip": "libtpu 0.0.42.1: devices of its topology descriptions",
        "hbm_bytes": _LIBTPU,
        "vmem_bytes": _JAX,
        "peak_bf16": page,
        "peak_int8": page,
        "peak_f32": _F32,
        "hbm_bandwidth": page,
        "ici_links": page + " (interconnect topology: two links per axis of the torus)",
        "ici_bandwidth": page + " (bidirectional bandwidth of the chip / links / 2)",
        "sparse_cores": page,
        "mxu_size": _JAX,
        "flops_per_cycle": _CLOCK,
        "clock_hz": _CLOCK,
    }
    peak = bf16 / devices_per_chip
    return Hardware(
        generation=generation,
        device_name=device_name,
        cores_per_device=cores,
        devices_per_chip=devices_per_chip,
        hbm_bytes=hbm_mib * _MIB,
        vmem_bytes=vmem_mib * _MIB,
        peak_bf16=peak,
        peak_int8=None if int8 is None else int8 / devices_per_chip,
        peak_f32=peak / 6,
        hbm_bandwidth=hbm_bandwidth / devices_per_chip,
        ici_links=links,
        ici_bandwidth=ici,
        sparse_cores=None if sparse_cores is None else sparse_cores // devices_per_chip,
        mxu_size=mxu_size,
        flops_per_cycle=flops_per_cycle,
        clock_hz=peak / flops_per_cycle,
        source=MappingProxyType(sources | source),
    )


_UNKNOWN = "unknown: no published figure found"

HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {
        "v2": _hardware(
            "v2",
            "TPU v2",
            devices_per_chip=2,
            hbm_mib=7664,
            vmem_mib=16,
            bf16=46e12,
            int8=None,
            hbm_bandwidth=716e9,
            links=4,
            ici=None,
            sparse_cores=None,
            mxu_size=128,
            flops_per_cycle=32768,
            source={
                "peak_bf16": _JAX,
                "peak_int8": "none: no int8 rate of its own (" + _JAX + ")",
                "hbm_bandwidth": _JAX,
                "ici_bandwidth": _UNKNOWN,
                "sparse_cores": _UNKNOWN,
            },
        ),
        "v3": _hardware(
            "v3",
            "TPU v3",
            devices_per_chip=2,
            hbm_mib=15856,
            vmem_mib=16,
            bf16=123e12,
            int8=None,
            hbm_bandwidth=900e9,
            links=4,
            ici=100e9,
            sparse_cores=None,
            mxu_size=128,
            flops_per_cycle=65536,
            source={
                "peak_int8": "none: no int8 rate of its own (" + _JAX + ")",
                "ici_bandwidth": _BOOK
                + "; agrees with the bisection bandwidth of a pod, 6.4 TB/s over 64 links, on "
                + _CLOUD.format(page="v3"),
                "sparse_cores": _UNKNOWN,
            },
        ),
        "v4": _hardware(
            "v4",
            "TPU v4",
            cores=2,
            hbm_mib=31488,
            vmem_mib=32,
            bf16=275e12,
            int8=275e12,
            hbm_bandwidth=1200e9,
            links=6,
            ici=45e9,
            sparse_cores=None,
            mxu_size=128,
            flops_per_cycle=262144,
            source={"ici_bandwidth": _BOOK, "sparse_cores": _UNKNOWN},
        ),
        "v5e": _hardware(
            "v5e",
            "TPU v5 lite",
            hbm_mib=16128,
            vmem_mib=128,
            bf16=197e12,
            int8=393e12,
            hbm_bandwidth=819e9,
            links=4,
            ici=50e9,
            sparse_cores=0,
            mxu_size=128,
            flops_per_cycle=131072,
            source={"sparse_cores": _JAX + "; the compiler refuses SparseCore programs for it"},
        ),
        "v5p": _hardware(
            "v5p",
            "TPU v5",
            cores=2,
            hbm_mib=98042,
            vmem_mib=128,
            bf16=459e12,
            int8=918e12,
            hbm_bandwidth=2765e9,
            links=6,
            ici=100e9,
            sparse_cores=4,
            mxu_size=128,
            flops_per_cycle=262144,
            source={"peak_int8": _JAX},
        ),
        "v6e": _hardware(
            "v6e",
            "TPU v6 lite",
            hbm_mib=32000,
            vmem_mib=128,
            bf16=918e12,
            int8=1836e12,
            hbm_bandwidth=1638e9,
            links=4,
            ici=100e9,
            sparse_cores=2,
            mxu_size=256,
            flops_per_cycle=524288,
            source={"sparse_cores": _CLOUD.format(page="tpu7x")},
        ),
        "tpu7x": _hardware(
            "tpu7x",
            "TPU7x",
            devices_per_chip=2,
            hbm_mib=97024,
            vmem_mib=64,
            bf16=2307e12,
            int8=None,
            hbm_bandwidth=7380e9,
            links=6,
            ici=100e9,
            sparse_cores=4,
            mxu_size=256,
            flops_per_cycle=524288,
            source={"peak_int8": _UNKNOWN + " (FP8: 4614e12 per chip)"},
        ),
    }
)


def hardware_of(device_kind: str) -> Hardware | None:
    """The row for an attached device's ``device_kind``, or None when it is no known TPU."""
    aliases = {"TPU v5e": "v5e", "TPU v5p": "v5p", "TPU v6e": "v6e"}
    if device_kind in aliases:
        return HARDWARE[aliases[device_kind]]
    return next((row for row in HARDWARE.values() if row.device_name == device_kind), None)
