//! The statistics of a comparison: what is noise, and what isn't.
//!
//! A sample is one number per round: the median time per operation in one process. Rounds of both
//! sides take turns, so that whatever else the machine does hits both alike; under the hypothesis
//! that nothing changed, any order of the numbers is as likely as any other. Hence rank tests, which
//! ask for no more than that: no normal distribution, no equal variance, and an outlier counts as
//! one rank, however far out it is.

/// The middle value. Zero for an empty sample.
pub fn median(sample: &[f64]) -> f64 {
    let sorted = sorted(sample);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

/// How far the 95 % confidence interval of the median reaches from it, as a share of it.
///
/// The interval lies between two values of the sample, chosen by the binomial distribution; a sample
/// of less than six has no such interval, and its range is taken.
pub fn spread(sample: &[f64]) -> f64 {
    let sorted = sorted(sample);
    let median = median(sample);
    if sorted.len() < 2 || median == 0.0 {
        return 0.0;
    }
    let rank = median_rank(sorted.len());
    let (low, high) = (sorted[rank], sorted[sorted.len() - 1 - rank]);
    (high - median).max(median - low) / median
}

/// How many values to leave out at each end of a sorted sample, such that the rest holds the median
/// with 95 % confidence.
fn median_rank(length: usize) -> usize {
    let mut rank = 0;
    // P(at most `rank` of the values lie below the median)
    let mut below = 0.5_f64.powi(length as i32);
    let mut term = below;
    while below <= 0.025 {
        rank += 1;
        term *= (length - rank + 1) as f64 / rank as f64;
        below += term;
    }
    rank.saturating_sub(1)
}

/// The geometric mean. One for an empty sample.
pub fn geometric_mean(sample: &[f64]) -> f64 {
    if sample.is_empty() {
        return 1.0;
    }
    (sample.iter().map(|value| value.ln()).sum::<f64>() / sample.len() as f64).exp()
}

/// The two-sided p-value of the rank test of Mann and Whitney: how likely two samples of one
/// distribution differ in rank by as much as these.
///
/// Exact for samples without ties, and by the normal approximation, corrected for ties and for
/// continuity, otherwise. One if a sample is empty.
pub fn rank_test(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 1.0;
    }
    let (u, ties) = u_statistic(a, b);
    let p = if ties == 0.0 {
        exact_p(u, a.len(), b.len())
    } else {
        approximate_p(u, a.len() as f64, b.len() as f64, ties)
    };
    p.min(1.0)
}

/// How often a value of `b` is above one of `a` (a tie counts half), and the sum of t^3 - t over
/// groups of t equal values.
fn u_statistic(a: &[f64], b: &[f64]) -> (f64, f64) {
    let u = b
        .iter()
        .flat_map(|b| a.iter().map(move |a| (a, b)))
        .map(|(a, b)| match a.total_cmp(b) {
            std::cmp::Ordering::Less => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Greater => 0.0,
        })
        .sum();
    let all = sorted(&[a, b].concat());
    let ties = all
        .chunk_by(|left, right| left == right)
        .map(|group| (group.len() as f64).powi(3) - group.len() as f64)
        .sum();
    (u, ties)
}

fn exact_p(u: f64, n: usize, m: usize) -> f64 {
    let distribution = u_distribution(n, m);
    let low = u.min((n * m) as f64 - u).floor() as usize;
    2.0 * distribution[..=low].iter().sum::<f64>()
}

/// The probability of each value of U, 0 to n*m, if both samples come from one distribution.
///
/// Counts the ways recursively: the largest value is either of `b`, and then above all of `a`, or of
/// `a`, and then adds nothing.
fn u_distribution(n: usize, m: usize) -> Vec<f64> {
    // ways[i] is the distribution for i values of `a` and the values of `b` so far
    let mut ways: Vec<Vec<f64>> = vec![vec![1.0]; n + 1];
    for of_b in 1..=m {
        let mut next: Vec<Vec<f64>> = Vec::with_capacity(n + 1);
        next.push(vec![1.0]);
        for of_a in 1..=n {
            let mut row = vec![0.0; of_a * of_b + 1];
            let all = (of_a + of_b) as f64;
            for (u, p) in ways[of_a].iter().enumerate() {
                row[u + of_a] += p * of_b as f64 / all;
            }
            for (u, p) in next[of_a - 1].iter().enumerate() {
                row[u] += p * of_a as f64 / all;
            }
            next.push(row);
        }
        ways = next;
    }
    ways.swap_remove(n)
}

fn approximate_p(u: f64, n: f64, m: f64, ties: f64) -> f64 {
    let all = n + m;
    let variance = n * m / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        // All values are equal.
        return 1.0;
    }
    let distance = ((u - n * m / 2.0).abs() - 0.5).max(0.0);
    2.0 * normal_tail(distance / variance.sqrt())
}

/// P(Z > z) for a standard normal Z and z >= 0, with a relative error below 1.2e-7 (the Chebyshev
/// fit of the complementary error function).
fn normal_tail(z: f64) -> f64 {
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * x);
    let coefficients = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let polynomial = coefficients.iter().rev().fold(0.0, |sum, c| sum * t + c);
    0.5 * t * (-x * x + polynomial).exp()
}

/// The ratio of `b` to `a` with its confidence interval: the median of all pairwise ratios (the
/// estimate of Hodges and Lehmann on a logarithmic scale), and the interval that goes with the rank
/// test. Samples too small for the confidence have an interval without ends.
pub fn ratio(a: &[f64], b: &[f64], confidence: f64) -> Ratio {
    let all: Vec<f64> = a
        .iter()
        .flat_map(|a| b.iter().map(move |b| b / a))
        .collect();
    let all = sorted(&all);
    let mut ratio = Ratio {
        estimate: median(&all),
        low: 0.0,
        high: f64::INFINITY,
    };
    if all.is_empty() {
        ratio.estimate = 1.0;
        return ratio;
    }
    let tail = (1.0 - confidence) / 2.0;
    let mut below = 0.0;
    for (u, p) in u_distribution(a.len(), b.len()).iter().enumerate() {
        below += p;
        if below > tail {
            break;
        }
        // As many pairwise ratios lie below the interval as U may be small.
        ratio.low = all[u];
        ratio.high = all[all.len() - 1 - u];
    }
    ratio
}

/// A ratio and where it lies with the confidence asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The best guess.
    pub estimate: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// Corrects p-values for being many (Holm): among a hundred comparisons one is below 0.01 by chance.
/// Afterwards the chance that any of them is wrongly below a limit is that limit.
pub fn adjust(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut largest: f64 = 0.0;
    for (rank, &index) in order.iter().enumerate() {
        let corrected = p_values[index] * (p_values.len() - rank) as f64;
        largest = largest.max(corrected.min(1.0));
        adjusted[index] = largest;
    }
    adjusted
}

fn sorted(sample: &[f64]) -> Vec<f64> {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) {
        let tolerance = 1e-6 * right.abs().max(1e-3);
        assert!((left - right).abs() < tolerance, "{left} is not {right}");
    }

    #[test]
    fn medians() {
        close(median(&[]), 0.0);
        close(median(&[3.0, 1.0, 2.0]), 2.0);
        close(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    /// The ranks are those of a binomial table: with ten values the interval is the second to the
    /// ninth, with twelve the third to the tenth.
    #[test]
    fn the_spread_is_the_confidence_interval_of_the_median() {
        assert_eq!(median_rank(5), 0);
        assert_eq!(median_rank(6), 0);
        assert_eq!(median_rank(10), 1);
        assert_eq!(median_rank(12), 2);
        assert_eq!(median_rank(25), 7);
        let sample: Vec<f64> = (96..=105).map(f64::from).collect();
        close(spread(&sample), 3.5 / 100.5);
        close(spread(&[5.0]), 0.0);
    }

    #[test]
    fn geometric_means() {
        close(geometric_mean(&[]), 1.0);
        close(geometric_mean(&[0.5, 2.0, 8.0]), 2.0);
    }

    /// Two samples of four without overlap: 2 of the 70 ways to order them are as extreme.
    #[test]
    fn exact_p_values_match_counting() {
        let a = [1.0, 2.0, 3.0, 4.0];
        close(rank_test(&a, &[5.0, 6.0, 7.0, 8.0]), 2.0 / 70.0);
        close(rank_test(&[5.0, 6.0, 7.0, 8.0], &a), 2.0 / 70.0);
        // U = 1: one more way on each side
        close(rank_test(&a, &[3.5, 6.0, 7.0, 8.0]), 4.0 / 70.0);
        // and in the middle, certainty
        close(rank_test(&[1.0, 4.0], &[2.0, 3.0]), 1.0);
        let ten: Vec<f64> = (0..10).map(f64::from).collect();
        let above: Vec<f64> = (10..20).map(f64::from).collect();
        close(rank_test(&ten, &above), 2.0 / 184_756.0);
    }

    /// The exact distribution and its approximation agree where both hold.
    #[test]
    fn the_approximation_is_one() {
        for u in [60.0, 75.0, 90.0, 100.0, 112.0] {
            let exact = exact_p(u, 15, 15);
            let approximate = approximate_p(u, 15.0, 15.0, 0.0);
            assert!((exact - approximate).abs() < 0.01, "{exact} {approximate}");
        }
        close(normal_tail(0.0), 0.5);
        close(normal_tail(1.959_963_985), 0.025);
        close(normal_tail(3.0), 0.001_349_898_03);
    }

    #[test]
    fn ties_are_no_evidence() {
        close(rank_test(&[1.0; 8], &[1.0; 8]), 1.0);
        assert!(rank_test(&[1.0, 1.0, 2.0, 2.0], &[1.0, 2.0, 2.0, 1.0]) > 0.9);
        // but equal values on one side only don't hide a difference
        assert!(rank_test(&[1.0; 8], &[2.0; 8]) < 0.001);
        close(rank_test(&[], &[1.0]), 1.0);
    }

    #[test]
    fn ratios_come_with_an_interval() {
        let a: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i % 5)).collect();
        let b: Vec<f64> = a.iter().map(|value| value * 1.2).collect();
        let ratio = super::ratio(&a, &b, 0.99);
        close(ratio.estimate, 1.2);
        assert!(ratio.low > 1.15 && ratio.high < 1.25, "{ratio:?}");
        let small = super::ratio(&[1.0, 2.0], &[1.0, 2.0], 0.99);
        assert_eq!((small.low, small.high), (0.0, f64::INFINITY));
    }

    #[test]
    fn the_interval_excludes_one_just_when_the_test_rejects() {
        let mut random = crate::bench::synthetic::Random::new(7);
        for shift in [1.0, 1.01, 1.03, 1.1] {
            for _ in 0..200 {
                let a = random.noisy(100.0, 0.03, 10);
                let b = random.noisy(100.0 * shift, 0.03, 10);
                let ratio = super::ratio(&a, &b, 0.99);
                let excluded = ratio.low > 1.0 || ratio.high < 1.0;
                assert_eq!(excluded, rank_test(&a, &b) <= 0.01);
            }
        }
    }

    #[test]
    fn many_comparisons_are_corrected() {
        let adjusted = adjust(&[0.04, 0.001, 0.03, 0.5]);
        close(adjusted[1], 0.004);
        close(adjusted[2], 0.09);
        close(adjusted[0], 0.09);
        close(adjusted[3], 0.5);
        assert_eq!(adjust(&[]), Vec::<f64>::new());
    }
}
