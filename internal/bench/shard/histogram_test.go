package shard

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

func TestAHistogramIsExactToThreeDigits(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	h := &Histogram{}
	var all []time.Duration
	var sum time.Duration
	for range 50_000 {
		d := time.Duration(rng.ExpFloat64() * float64(5*time.Millisecond))
		h.Record(d)
		all, sum = append(all, d), sum+d
	}
	slices.Sort(all)
	for _, p := range []float64{50, 95, 99, 99.9} {
		near(t, "percentile", h.Percentile(p), all[int(p/100*50_000)-1])
	}
	near(t, "mean", h.Mean(), sum/50_000)
	near(t, "max", h.Max(), all[len(all)-1])
	if h.Min() != all[0].Truncate(time.Microsecond) || h.Count() != 50_000 {
		t.Errorf("min %v of %v, %d values", h.Min(), all[0], h.Count())
	}
}

func TestWhatDoesNotFitCountsAsTheNearestThatDoes(t *testing.T) {
	h := &Histogram{}
	h.Record(-time.Second)
	h.Record(time.Hour)
	if h.Count() != 2 || h.Min() != 0 || h.Max() != Longest || h.Percentile(99) != Longest {
		t.Errorf("%d values from %v to %v", h.Count(), h.Min(), h.Max())
	}
}

func TestAnEmptyHistogramHasNoTimes(t *testing.T) {
	for name, h := range map[string]*Histogram{"nil": nil, "zero": {}, "read": readHistogram(t, &Histogram{})} {
		if h.Count() != 0 || h.Min() != 0 || h.Mean() != 0 || h.Max() != 0 || h.Percentile(99) != 0 {
			t.Errorf("%s: %d values", name, h.Count())
		}
	}
}

func TestAHistogramCanBeUsedAgain(t *testing.T) {
	h := histogram(1, 2, 3)
	h.Reset()
	if h.Count() != 0 || h.Max() != 0 {
		t.Errorf("%d values to %v", h.Count(), h.Max())
	}
	h.Record(5 * time.Millisecond)
	near(t, "min", h.Min(), 5*time.Millisecond)
	near(t, "max", h.Max(), 5*time.Millisecond)
}

func readHistogram(t *testing.T, h *Histogram) *Histogram {
	t.Helper()
	text, err := h.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var back Histogram
	if err := back.UnmarshalText(text); err != nil {
		t.Fatal(err)
	}
	return &back
}

func TestOtherHistogramsAreRefused(t *testing.T) {
	encode := func(low, high int64, digits int) string {
		h := hdrhistogram.New(low, high, digits)
		if err := h.RecordValue(low + 1); err != nil {
			t.Fatal(err)
		}
		text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, text := range map[string]string{
		"empty":        "",
		"not base64":   "!!!!",
		"not one":      "SElTVEZBQUFBQQ==",
		"two digits":   encode(1, highest, 2),
		"a wide range": encode(1, 1<<62, 5),
		"nanoseconds":  encode(1000, highest*1000, 3),
		"too long":     strings.Repeat("A", encodedMost+1),
		"cut off":      encode(1, highest, 3)[:60],
	} {
		if err := (&Histogram{}).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := (&Histogram{}).UnmarshalText([]byte(encode(1, highest, 3))); err != nil {
		t.Errorf("one of this geometry: %v", err)
	}
}
