// Package stats turns repeated measurements into figures with intervals. All
// intervals are two-sided at Confidence.
package stats

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mathext"
)

// Confidence is that of every interval.
const Confidence = 0.95

// Interval holds the true value with Confidence.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Estimate is a value that was measured N times. One measurement gives no
// interval.
type Estimate struct {
	Value    float64   `json:"value"`
	Interval *Interval `json:"interval,omitempty"`
	N        int       `json:"n"`
}

// Mean is the mean of samples, with Student's t interval.
func Mean(samples []float64) (Estimate, error) {
	if err := finite(samples); err != nil {
		return Estimate{}, err
	}
	mean, se := meanAndError(samples)
	e := Estimate{Value: mean, N: len(samples)}
	if e.N > 1 {
		half := tQuantile(float64(e.N-1)) * se
		e.Interval = &Interval{mean - half, mean + half}
	}
	return e, nil
}

// Amount is the mean of samples of what is above 0, as a time, a rate or a cost, with
// the interval Around it.
func Amount(samples []float64) (Estimate, error) {
	if err := finite(samples); err != nil {
		return Estimate{}, err
	}
	mean, _ := meanAndError(samples)
	return Estimate{Value: mean, Interval: Around(mean, samples), N: len(samples)}, nil
}

// Around is the interval of an estimate of what is above 0 that was measured as
// samples. What disturbs a time or a rate does so by a factor, and has more room above
// than below: the interval is Student's t on logarithms, as many times above the
// estimate as below it. It is nil where there are fewer than two samples, or one that
// is not above 0 and has no logarithm.
func Around(estimate float64, samples []float64) *Interval {
	if len(samples) < 2 || positive(samples) != nil {
		return nil
	}
	_, se := meanAndError(logarithms(samples))
	factor := math.Exp(tQuantile(float64(len(samples)-1)) * se)
	return &Interval{estimate / factor, estimate * factor}
}

// PairedRatio is the mean ratio of two figures that were measured side by side,
// as[i] with bs[i]: what changes from one pair to the next (a noisy neighbour, a
// warm machine) cancels out. The mean is geometric, with a t interval on the
// logarithms: a to b then says the same as b to a.
func PairedRatio(as, bs []float64) (Estimate, error) {
	if len(as) != len(bs) {
		return Estimate{}, fmt.Errorf("%d and %d samples: pairs need as many", len(as), len(bs))
	}
	if err := positive(as, bs); err != nil {
		return Estimate{}, err
	}
	logs := make([]float64, len(as))
	for i := range as {
		logs[i] = math.Log(as[i] / bs[i])
	}
	e, err := Mean(logs)
	return exponential(e), err
}

// Ratio is the same of figures that were not measured side by side, as those of
// two runs. The interval is Welch's: the two may vary differently.
func Ratio(as, bs []float64) (Estimate, error) {
	if err := positive(as, bs); err != nil {
		return Estimate{}, err
	}
	e := Estimate{N: min(len(as), len(bs))}
	meanA, seA := meanAndError(logarithms(as))
	meanB, seB := meanAndError(logarithms(bs))
	e.Value = meanA - meanB
	if e.N > 1 {
		half := 0.0
		if se := math.Hypot(seA, seB); se > 0 {
			half = tQuantile(welch(seA, len(as), seB, len(bs))) * se
		}
		e.Interval = &Interval{e.Value - half, e.Value + half}
	}
	return exponential(e), nil
}

// welch is the Welch-Satterthwaite equation: the degrees of freedom of a
// difference of means with these standard errors.
func welch(seA float64, nA int, seB float64, nB int) float64 {
	a, b := seA*seA, seB*seB
	return (a + b) * (a + b) / (a*a/float64(nA-1) + b*b/float64(nB-1))
}

// AtLeast is the probability that k of n things, or more, are what each is with
// probability p: the upper tail of the binomial distribution.
func AtLeast(k, n int64, p float64) float64 {
	switch {
	case k <= 0:
		return 1
	case k > n:
		return 0
	}
	return mathext.RegIncBeta(float64(k), float64(n-k)+1, p)
}

// tQuantile is Student's t for a two-sided interval.
func tQuantile(degrees float64) float64 {
	x := mathext.InvRegIncBeta(degrees/2, 0.5, 1-Confidence)
	return math.Sqrt(degrees * (1 - x) / x)
}

// meanAndError are the mean and its standard error, 0 of one sample.
func meanAndError(samples []float64) (mean, se float64) {
	n := float64(len(samples))
	for _, s := range samples {
		mean += s / n
	}
	if n < 2 {
		return mean, 0
	}
	var squares float64
	for _, s := range samples {
		squares += (s - mean) * (s - mean)
	}
	return mean, math.Sqrt(squares / (n - 1) / n)
}

func logarithms(samples []float64) []float64 {
	logs := make([]float64, len(samples))
	for i, s := range samples {
		logs[i] = math.Log(s)
	}
	return logs
}

func exponential(e Estimate) Estimate {
	e.Value = math.Exp(e.Value)
	if e.Interval != nil {
		e.Interval = &Interval{math.Exp(e.Interval.Low), math.Exp(e.Interval.High)}
	}
	return e
}

func finite(samples []float64) error {
	if len(samples) == 0 {
		return fmt.Errorf("no samples")
	}
	for _, s := range samples {
		if math.IsNaN(s) || math.IsInf(s, 0) {
			return fmt.Errorf("sample %v: want a number", s)
		}
	}
	return nil
}

func positive(lists ...[]float64) error {
	for _, samples := range lists {
		if err := finite(samples); err != nil {
			return err
		}
		for _, s := range samples {
			if s <= 0 {
				return fmt.Errorf("sample %v: a ratio needs samples above 0", s)
			}
		}
	}
	return nil
}
