package stats

import (
	"fmt"
	"math"
	"time"
)

// Beyond is how many samples have to lie above a percentile before it is quoted:
// 10,000 samples for a p99, 100,000 for a p99.9. Fewer make it a figure of a few
// slow connections.
const Beyond = 100

// Times are recorded times; a histogram is.
type Times interface {
	Count() int64
	Percentile(p float64) time.Duration
}

// Percentile is a percentile with its interval, or the reason why there is none.
type Percentile struct {
	P     float64       `json:"p"`
	Value time.Duration `json:"value,omitempty"`
	// Low and High hold the true percentile with Confidence, when the samples are
	// independent.
	Low  time.Duration `json:"low,omitempty"`
	High time.Duration `json:"high,omitempty"`
	// Unavailable says why it is not quoted; the others are 0 then.
	Unavailable string `json:"unavailable,omitempty"`
}

// Available tells whether there is a value.
func (p Percentile) Available() bool { return p.Unavailable == "" }

// Name is what people call it, as p99.9.
func (p Percentile) Name() string { return fmt.Sprintf("p%g", p.P) }

// SamplesFor is how many samples the p-th percentile needs.
func SamplesFor(p float64) int64 {
	return int64(math.Round(Beyond / (1 - p/100)))
}

// PercentileOf is the p-th percentile of attempts, of which those that failed have no
// time: each took longer than any that did not. Its interval is that of order
// statistics, which asks nothing of how the times are distributed: of n independent
// ones, the number below the true percentile is binomial, here by its normal
// approximation.
func PercentileOf(times Times, failed int64, p float64) Percentile {
	result := Percentile{P: p}
	n := times.Count() + failed
	if need := SamplesFor(p); n < need {
		result.Unavailable = fmt.Sprintf("%s needs %d samples: there are %d", result.Name(), need, n)
		return result
	}
	half := normalQuantile * math.Sqrt(p/100*(1-p/100)/float64(n)) * 100
	high, ok := Among(times.Count(), failed, min(p+half, 100))
	if !ok {
		result.Unavailable = fmt.Sprintf("%s, or the end of its interval, lies among the attempts that failed: %d of %d did", result.Name(), failed, n)
		return result
	}
	at, _ := Among(times.Count(), failed, p) // below the other
	low, _ := Among(times.Count(), failed, max(p-half, 0))
	result.Value, result.Low, result.High = times.Percentile(at), times.Percentile(low), times.Percentile(high)
	return result
}

// Among says which percentile of those that succeeded the p-th of all attempts is;
// false where it is one of those that failed.
func Among(succeeded, failed int64, p float64) (percentile float64, ok bool) {
	if failed == 0 {
		return p, true
	}
	percentile = p * float64(succeeded+failed) / float64(succeeded)
	return percentile, percentile <= 100
}

// normalQuantile is that of a two-sided interval.
var normalQuantile = math.Sqrt2 * math.Erfinv(Confidence)
