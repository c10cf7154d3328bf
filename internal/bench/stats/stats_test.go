package stats

import (
	"math"
	"strings"
	"testing"
	"time"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// For 1, 2 and 4 degrees of freedom Student's t has closed forms; the others are
// R's qt(0.975, df), to which tables agree (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
func TestQuantilesOfStudentsT(t *testing.T) {
	alpha := 4 * 0.975 * 0.025
	q := math.Cos(math.Acos(math.Sqrt(alpha))/3) / math.Sqrt(alpha)
	for df, want := range map[float64]float64{
		1:  math.Tan(math.Pi * 0.475),
		2:  2 * 0.475 * math.Sqrt(2/alpha),
		4:  2 * math.Sqrt(q-1),
		3:  3.182446305284263,
		9:  2.262157162740992,
		30: 2.042272456301238,
	} {
		near(t, "t", tQuantile(df), want, 1e-9)
	}
	near(t, "of very many samples: the normal distribution's", tQuantile(1e7), 1.959964, 1e-6)
}

// By hand: coins, and of five dice no, one and two sixes.
func TestTheTailOfTheBinomialDistribution(t *testing.T) {
	for _, c := range []struct {
		k, n int64
		p    float64
		want float64
	}{
		{6, 6, 0.5, 1.0 / 64}, {5, 6, 0.5, 7.0 / 64}, {0, 6, 0.5, 1}, {7, 6, 0.5, 0}, {0, 0, 0.5, 1}, {1, 6, 0, 0}, {6, 6, 1, 1},
		{3, 5, 1.0 / 6, 1 - (3125.0+5*625+10*125)/7776},
	} {
		near(t, "at least", AtLeast(c.k, c.n, c.p), c.want, 1e-12)
	}
}

// The hours of sleep that ten patients gained by each of two drugs: Student, "The
// probable error of a mean", Biometrika 6 (1908); R's data set "sleep".
var (
	drug1 = []float64{0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0}
	drug2 = []float64{1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4}
)

// powers turns differences into ratios.
func powers(samples []float64) []float64 {
	p := make([]float64, len(samples))
	for i, s := range samples {
		p[i] = math.Exp(s)
	}
	return p
}

func TestIntervalsAreThoseOfStudentsOwnData(t *testing.T) {
	var difference []float64
	for i := range drug1 {
		difference = append(difference, drug1[i]-drug2[i])
	}
	// R: t.test(extra ~ group, data = sleep, paired = TRUE)
	mean, err := Mean(difference)
	if err != nil || mean.N != 10 {
		t.Fatalf("%+v, %v", mean, err)
	}
	near(t, "mean", mean.Value, -1.58, 1e-9)
	near(t, "low", mean.Interval.Low, -2.4598858, 1e-7)
	near(t, "high", mean.Interval.High, -0.7001142, 1e-7)

	paired, err := PairedRatio(powers(drug1), powers(drug2))
	if err != nil {
		t.Fatal(err)
	}
	near(t, "paired ratio", math.Log(paired.Value), -1.58, 1e-9)
	near(t, "low", math.Log(paired.Interval.Low), -2.4598858, 1e-7)
	near(t, "high", math.Log(paired.Interval.High), -0.7001142, 1e-7)

	// R: t.test(extra ~ group, data = sleep), Welch's with 17.776 degrees of freedom
	ratio, err := Ratio(powers(drug1), powers(drug2))
	if err != nil {
		t.Fatal(err)
	}
	near(t, "ratio", math.Log(ratio.Value), 0.75-2.33, 1e-9)
	near(t, "low", math.Log(ratio.Interval.Low), -3.3654832, 1e-6)
	near(t, "high", math.Log(ratio.Interval.High), 0.2054832, 1e-6)
	_, se1 := meanAndError(drug1)
	_, se2 := meanAndError(drug2)
	near(t, "degrees of freedom", welch(se1, 10, se2, 10), 17.776, 5e-4)
}

// R: x <- exp(sleep$extra[1:10] - sleep$extra[11:20]); mean(x) is 0.3176132, and
// t.test(log(x)) has the half width 0.8798858.
func TestAnAmountsIntervalIsStudentsOnLogarithms(t *testing.T) {
	var ratios []float64
	for i := range drug1 {
		ratios = append(ratios, math.Exp(drug1[i]-drug2[i]))
	}
	amount, err := Amount(ratios)
	if err != nil || amount.N != 10 {
		t.Fatalf("%+v, %v", amount, err)
	}
	near(t, "mean", amount.Value, 0.3176132, 1e-6)
	near(t, "low", amount.Interval.Low, 0.3176132*math.Exp(-0.8798858), 1e-6)
	near(t, "high", amount.Interval.High, 0.3176132*math.Exp(0.8798858), 1e-6)
}

// Two times that are far apart say little; not that one may be none, or less. By hand:
// t with one degree of freedom is tan(0.475 pi) = 12.7062, the standard error ln(3)/2.
func TestAnAmountIsAboveZero(t *testing.T) {
	amount, err := Amount([]float64{1, 3})
	if err != nil || amount.Value != 2 {
		t.Fatalf("%+v, %v", amount, err)
	}
	near(t, "times below", 2/amount.Interval.Low, 1074.48, 0.01)
	near(t, "times above", amount.Interval.High/2, 1074.48, 0.01)
	// In another unit it is the same.
	thousandfold, err := Amount([]float64{1000, 3000})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "low in another unit", thousandfold.Interval.Low, 1000*amount.Interval.Low, 1e-9)
	// Where errors are small, it is the interval of the mean.
	small := []float64{99.9, 100, 100.2, 99.8, 100.1}
	amount, err = Amount(small)
	if err != nil {
		t.Fatal(err)
	}
	mean, err := Mean(small)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "low of small errors", amount.Interval.Low, mean.Interval.Low, 1e-3)
	near(t, "high of small errors", amount.Interval.High, mean.Interval.High, 1e-3)
	// None has no logarithm.
	if amount, err = Amount([]float64{0, 4}); err != nil || amount.Value != 2 || amount.Interval != nil || amount.N != 2 {
		t.Errorf("%+v, %v", amount, err)
	}
}

func TestOneMeasurementHasNoInterval(t *testing.T) {
	for name, e := range map[string]func() (Estimate, error){
		"mean":   func() (Estimate, error) { return Mean([]float64{6}) },
		"amount": func() (Estimate, error) { return Amount([]float64{6}) },
		"paired": func() (Estimate, error) { return PairedRatio([]float64{6}, []float64{1}) },
		"ratio":  func() (Estimate, error) { return Ratio([]float64{12, 3}, []float64{1}) },
	} {
		got, err := e()
		if err != nil || got.Interval != nil || got.N != 1 || math.Abs(got.Value-6) > 1e-9 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestEqualMeasurementsHaveAnIntervalWithoutWidth(t *testing.T) {
	for name, f := range map[string]func() (Estimate, error){
		"ratio":  func() (Estimate, error) { return Ratio([]float64{2, 2}, []float64{1, 1}) },
		"amount": func() (Estimate, error) { return Amount([]float64{2, 2, 2}) },
	} {
		if e, err := f(); err != nil || e.Value != 2 || *e.Interval != (Interval{2, 2}) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

func TestSamplesThatAreNone(t *testing.T) {
	for name, f := range map[string]func() (Estimate, error){
		"no samples":   func() (Estimate, error) { return Mean(nil) },
		"sample NaN":   func() (Estimate, error) { return Mean([]float64{1, math.NaN()}) },
		"sample +Inf":  func() (Estimate, error) { return Mean([]float64{math.Inf(1)}) },
		"sample -Inf":  func() (Estimate, error) { return Amount([]float64{1, math.Inf(-1)}) },
		"2 and 1":      func() (Estimate, error) { return PairedRatio([]float64{1, 2}, []float64{1}) },
		"sample 0":     func() (Estimate, error) { return PairedRatio([]float64{1, 2}, []float64{1, 0}) },
		"sample -1":    func() (Estimate, error) { return Ratio([]float64{1, -1}, []float64{1, 1}) },
		"1 replicas t": func() (Estimate, error) { return Efficiency([]Sample{{1, 1, 5}, {1, 1, 6}}, 1, 1) },
		"no block has": func() (Estimate, error) { return Efficiency([]Sample{{1, 1, 5}, {2, 2, 6}}, 1, 2) },
		"of 0 replica": func() (Estimate, error) { return Efficiency(nil, 1, 0) },
	} {
		if e, err := f(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

// ranks are the times 1, 2, ... n in milliseconds.
type ranks int64

func (n ranks) Count() int64 { return int64(n) }
func (n ranks) Percentile(p float64) time.Duration {
	return time.Duration(math.Ceil(p/100*float64(n))) * time.Millisecond
}

func TestPercentilesNeedAHundredSamplesBeyondThem(t *testing.T) {
	for _, c := range []struct {
		p           float64
		n           ranks
		unavailable string
	}{
		{50, 200, ""},
		{50, 199, "p50 needs 200 samples: there are 199"},
		{95, 2000, ""},
		{95, 1999, "p95 needs 2000 samples: there are 1999"},
		{99, 10_000, ""},
		{99, 9_999, "p99 needs 10000 samples: there are 9999"},
		{99.9, 100_000, ""},
		{99.9, 99_999, "p99.9 needs 100000 samples: there are 99999"},
	} {
		p := PercentileOf(c.n, 0, c.p)
		if p.Unavailable != c.unavailable || p.Available() != (p.Value > 0) {
			t.Errorf("p%v of %d: %+v, want unavailable %q", c.p, c.n, p, c.unavailable)
		}
	}
}

// Of 10,000 samples the number below the true p99 is 9900 with a standard
// deviation of sqrt(10000 x 0.99 x 0.01) = 9.95.
func TestIntervalsOfPercentilesAreRanks(t *testing.T) {
	p := PercentileOf(ranks(10_000), 0, 99)
	if p.Value != 9900*time.Millisecond || p.Low != 9881*time.Millisecond || p.High != 9920*time.Millisecond {
		t.Errorf("%+v", p)
	}
}

// Of 100,000 attempts the 99,900th is the p99.9, whoever failed. Its interval reaches up
// to 100,000 x (0.999 + 1.96 x sqrt(0.999 x 0.001 / 100,000)), which is the 99,920th.
func TestAttemptsThatFailedTookLongest(t *testing.T) {
	for _, c := range []struct {
		failed      int64
		p           float64
		value, high int // in ranks
		unavailable string
	}{
		{0, 99.9, 99_900, 99_920, ""},
		{80, 99.9, 99_900, 99_920, ""},
		{81, 99.9, 0, 0, "p99.9, or the end of its interval, lies among the attempts that failed: 81 of 100000 did"},
		{200, 99.9, 0, 0, "p99.9, or the end of its interval, lies among the attempts that failed: 200 of 100000 did"},
		{200, 99, 99_000, 99_062, ""},
		{100_000, 50, 0, 0, "p50, or the end of its interval, lies among the attempts that failed: 100000 of 100000 did"},
	} {
		p := PercentileOf(ranks(100_000-c.failed), c.failed, c.p)
		near := func(d time.Duration, rank int) bool {
			return (d - time.Duration(rank)*time.Millisecond).Abs() <= time.Millisecond
		}
		if p.Unavailable != c.unavailable || !near(p.Value, c.value) || !near(p.High, c.high) {
			t.Errorf("p%v with %d failed: %+v", c.p, c.failed, p)
		}
	}
}
