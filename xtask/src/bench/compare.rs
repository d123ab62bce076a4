//! The verdict on each benchmark: slower, faster, the same, or too noisy to say.
//!
//! Unchanged code must never be called slower, since nobody looks at a table that cries wolf; and a
//! slowdown that matters must be found. Among a hundred benchmarks one looks changed by chance, at
//! the usual limits. So what looks changed is measured anew, and is called so only if it does so
//! again, now corrected for how many are asked: the chance of a false alarm is one in a thousand for
//! a whole run, however many benchmarks it has. Where the interval of confidence is so
//! wide that a slowdown that matters could hide in it, the verdict is that there is none.

use super::stats::{self, Ratio};

/// The chance that an unchanged benchmark looks changed in the first measurement.
pub const SIGNIFICANT: f64 = 0.01;
/// The chance that any of those does so again in the second.
pub const CONFIRMED: f64 = 0.002;
/// Differences below this share are called none, however significant: moving a function in the
/// executable does as much.
pub const NEGLIGIBLE: f64 = 0.02;
/// What matters, unless the caller says otherwise.
pub const MATTERS: f64 = 0.10;

/// Times of one benchmark on both sides, in nanoseconds per operation, one per round.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// Before.
    pub base: Vec<f64>,
    /// Now.
    pub new: Vec<f64>,
}

/// What is said about one benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Time now to time before.
    pub ratio: Ratio,
    /// The p-value of the rank test.
    pub p: f64,
    /// The conclusion.
    pub verdict: Verdict,
}

/// The conclusion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// No significant change.
    Same,
    /// Significantly slower.
    Slower,
    /// Significantly faster.
    Faster,
    /// The interval is too wide to exclude a slowdown that matters.
    Noisy,
    /// A difference that was not there when it was measured again.
    Unconfirmed,
}

/// Judges the pairs of one measurement. `matters` is the share that must not hide in the noise.
pub fn judge(pairs: &[Pair], matters: f64) -> Vec<Judgement> {
    let test = |pair: &Pair| stats::rank_test(&pair.base, &pair.new);
    judge_with(
        pairs,
        &pairs.iter().map(test).collect::<Vec<_>>(),
        SIGNIFICANT,
        matters,
    )
}

fn judge_with(pairs: &[Pair], p_values: &[f64], limit: f64, matters: f64) -> Vec<Judgement> {
    pairs
        .iter()
        .zip(p_values)
        .map(|(pair, &p)| {
            let ratio = stats::ratio(&pair.base, &pair.new, 1.0 - SIGNIFICANT);
            let change = ratio.estimate - 1.0;
            let verdict = if p <= limit && change >= NEGLIGIBLE {
                Verdict::Slower
            } else if p <= limit && change <= -NEGLIGIBLE {
                Verdict::Faster
            } else if ratio.high > 1.0 + matters {
                Verdict::Noisy
            } else {
                Verdict::Same
            };
            Judgement { ratio, p, verdict }
        })
        .collect()
}

/// Judges a first measurement of everything and a second one of what looked changed in the first.
///
/// `again` measures the pairs with the given indices anew. Returns the judgements, and the pairs
/// that they rest on: a changed benchmark is shown as it was the second time, since the first time
/// it was picked for being far off.
///
/// # Errors
/// What `again` gives.
pub fn confirm<E>(
    mut pairs: Vec<Pair>,
    matters: f64,
    again: impl FnOnce(&[usize]) -> Result<Vec<Pair>, E>,
) -> Result<(Vec<Pair>, Vec<Judgement>), E> {
    let mut judgements = judge(&pairs, matters);
    let changed: Vec<usize> = (0..pairs.len())
        .filter(|&index| judgements[index].verdict.is_change())
        .collect();
    if changed.is_empty() {
        return Ok((pairs, judgements));
    }
    let second = again(&changed)?;
    let p_values: Vec<f64> = judge(&second, matters).iter().map(|one| one.p).collect();
    let corrected = judge_with(&second, &stats::adjust(&p_values), CONFIRMED, matters);
    for ((&index, pair), mut judgement) in changed.iter().zip(&second).zip(corrected) {
        if judgement.verdict != judgements[index].verdict {
            judgement.verdict = Verdict::Unconfirmed;
        }
        judgements[index] = judgement;
        pairs[index] = pair.clone();
    }
    Ok((pairs, judgements))
}

impl Verdict {
    /// Whether it says that something changed.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Slower | Self::Faster)
    }

    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Noisy => "too noisy",
            Self::Unconfirmed => "not seen again",
        }
    }
}

impl Judgement {
    /// Whether it is a slowdown of more than `limit`.
    pub fn breaks(&self, limit: f64) -> bool {
        self.verdict == Verdict::Slower && self.ratio.estimate - 1.0 > limit
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::super::synthetic::Random;
    use super::*;

    const ROUNDS: usize = 20;

    /// A run of 30 benchmarks with the given noise; benchmark 7 became slower by `factor`.
    fn measure(random: &mut Random, noise: f64, factor: f64) -> Vec<Pair> {
        (0..30)
            .map(|index| {
                let middle = 50.0 * f64::from(index + 1);
                let factor = if index == 7 { factor } else { 1.0 };
                Pair {
                    base: random.noisy(middle, noise, ROUNDS),
                    new: random.noisy(middle * factor, noise, ROUNDS),
                }
            })
            .collect()
    }

    fn run(seed: u64, noise: f64, factor: f64) -> Vec<Judgement> {
        let mut random = Random::new(seed);
        let first = measure(&mut random, noise, factor);
        let again = |indices: &[usize]| {
            let all = measure(&mut random, noise, factor);
            Ok::<_, Infallible>(indices.iter().map(|&index| all[index].clone()).collect())
        };
        confirm(first, MATTERS, again).unwrap().1
    }

    #[test]
    fn unchanged_code_is_never_called_changed() {
        for seed in 0..50 {
            for noise in [0.01, 0.05, 0.2] {
                let changed = run(seed, noise, 1.0).iter().any(|j| j.verdict.is_change());
                assert!(!changed, "seed {seed}, noise {noise}");
            }
        }
    }

    /// With one value in ten far off on either side, a slowdown in fifty may still be missed.
    #[test]
    fn a_slowdown_of_a_fifth_is_found_alone() {
        for noise in [0.01, 0.05] {
            let mut found = 0;
            for seed in 0..50 {
                let judgements = run(seed, noise, 1.2);
                let breaking: Vec<_> = (0..30).filter(|&i| judgements[i].breaks(0.1)).collect();
                assert!(
                    breaking.is_empty() || breaking == [7],
                    "seed {seed}: {breaking:?}"
                );
                found += breaking.len();
            }
            assert!(found >= 49, "noise {noise}: found {found} of 50");
        }
    }

    #[test]
    fn a_speedup_is_one() {
        let judgements = run(1, 0.02, 0.8);
        assert_eq!(judgements[7].verdict, Verdict::Faster);
        assert!(!judgements[7].breaks(0.1));
    }

    #[test]
    fn a_change_below_the_limit_is_told_but_does_not_break() {
        let judgements = run(2, 0.005, 1.05);
        assert_eq!(judgements[7].verdict, Verdict::Slower);
        assert!(!judgements[7].breaks(0.1));
    }

    #[test]
    fn noise_in_which_a_slowdown_could_hide_is_told() {
        let judgements = run(3, 0.3, 1.0);
        let noisy = judgements.iter().filter(|j| j.verdict == Verdict::Noisy);
        assert!(noisy.count() > 20);
        let judgements = run(3, 0.01, 1.0);
        assert!(judgements.iter().all(|j| j.verdict != Verdict::Noisy));
    }

    #[test]
    fn what_is_gone_the_second_time_is_not_confirmed() {
        let pair = |factor: f64| Pair {
            base: (0..12).map(|i| 100.0 + f64::from(i)).collect(),
            new: (0..12).map(|i| factor * (100.5 + f64::from(i))).collect(),
        };
        let again = |indices: &[usize]| {
            assert_eq!(indices, [1]);
            Ok::<_, Infallible>(vec![pair(1.0)])
        };
        let (pairs, judgements) = confirm(vec![pair(1.0), pair(1.5)], 0.1, again).unwrap();
        assert_eq!(judgements[1].verdict, Verdict::Unconfirmed);
        assert_eq!(pairs[1].new, pair(1.0).new);
    }

    #[test]
    fn too_few_rounds_are_no_ground() {
        let pair = Pair {
            base: vec![1.0, 1.0],
            new: vec![2.0, 2.0],
        };
        assert_eq!(judge(&[pair], 0.1)[0].verdict, Verdict::Noisy);
    }
}
