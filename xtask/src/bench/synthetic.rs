//! Made-up samples, to test the comparison with: it must find what is there and nothing else.

/// A small generator of random numbers (xorshift), the same numbers for the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Evenly distributed in 0 to 1.
    pub fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normally distributed around 0 with a deviation of 1.
    pub fn normal(&mut self) -> f64 {
        // Twelve uniform values have the variance 1.
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// Times as a busy machine gives them: around `middle`, mostly within `noise`, and one in ten
    /// far above.
    pub fn noisy(&mut self, middle: f64, noise: f64, count: usize) -> Vec<f64> {
        let one = |random: &mut Self| {
            let outlier = random.uniform() < 0.1;
            let extra = if outlier { random.uniform() * 0.8 } else { 0.0 };
            middle * (1.0 + noise * random.normal() + extra)
        };
        (0..count).map(|_| one(self)).collect()
    }
}
