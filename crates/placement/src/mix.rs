//! How are ties broken without bias? By a hash of what is compared, the same on every platform.

/// Scrambles a number so that neighbours end up far apart.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    let x = (x ^ (x >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d);
    x ^ (x >> 33)
}

/// A number for a name that depends on its bytes only.
pub(crate) fn of_name(name: &str) -> u64 {
    let folded = name.bytes().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17)
    });
    mix(folded)
}

/// A number for a pair of numbers.
pub(crate) fn pair(a: u64, b: u64) -> u64 {
    mix(a ^ mix(b.wrapping_add(0x6a09_e667_f3bc_c909)))
}
