//! Figures with their spread.

/// Median and quartiles of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

/// What a part of at least one value, 0.99 of them for instance, does not exceed.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = part * (sorted.len() - 1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * position.fract()
}

/// The spread of at least one value.
pub fn spread(values: &[f64]) -> Spread {
    Spread { low: quantile(values, 0.25), median: quantile(values, 0.5), high: quantile(values, 0.75) }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", self.median, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles() {
        assert_eq!(spread(&[3.0, 1.0, 2.0, 5.0, 4.0]), Spread { low: 2.0, median: 3.0, high: 4.0 });
        assert_eq!(spread(&[1.0, 2.0]), Spread { low: 1.25, median: 1.5, high: 1.75 });
        assert_eq!(spread(&[7.0]).median, 7.0);
        assert_eq!(format!("{:.1}", spread(&[1.0, 2.0])), "1.5 (1.2 to 1.8)");
    }
}
