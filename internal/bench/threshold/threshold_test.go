package threshold

import (
	"math"
	"os"
	"strings"
	"testing"
)

func TestThresholdsAreRead(t *testing.T) {
	for text, want := range map[string]Threshold{
		"p99 <= 5ms":                    {Metric: P99, Operator: "<=", Limit: 0.005},
		"efficiency@8 >= 0.95":          {Metric: Efficiency, Replicas: 8, Operator: ">=", Limit: 0.95},
		"failures == 0":                 {Metric: Failures, Operator: "=="},
		"failures!=12":                  {Metric: Failures, Operator: "!=", Limit: 12},
		" p99.9@16<1.5s ":               {Metric: P999, Replicas: 16, Operator: "<", Limit: 1.5},
		"hybrid-full/mean > 800us":      {Mode: "hybrid-full", Metric: Mean, Operator: ">", Limit: 0.0008},
		"resumption >= 95 %":            {Metric: Resumption, Operator: ">=", Limit: 0.95},
		"handshakesPerSecond@1 >= 500":  {Metric: HandshakesPerSecond, Replicas: 1, Operator: ">=", Limit: 500},
		"pqc/handshakesPerSecond>=12.5": {Mode: "pqc", Metric: HandshakesPerSecond, Operator: ">=", Limit: 12.5},
		"serverCPU <= 1.2ms":            {Metric: ServerCPU, Operator: "<=", Limit: 0.0012},
		"efficiency >= 97.5%":           {Metric: Efficiency, Operator: ">=", Limit: 0.975},
	} {
		got, err := Parse(text)
		want.text = strings.TrimSpace(text)
		if got.Limit-want.Limit < 1e-12 && want.Limit-got.Limit < 1e-12 {
			got.Limit = want.Limit
		}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
		if got.String() != strings.TrimSpace(text) {
			t.Errorf("%q is told as %q", text, got)
		}
	}
}

func TestErrorsSayWhichPartIsWrongAndWhatItMayBe(t *testing.T) {
	for text, want := range map[string]string{
		"":                            `threshold "": no operator: want METRIC OPERATOR LIMIT with one of <= >= == != < >, as in p99 <= 5ms`,
		"p99 5ms":                     `threshold "p99 5ms": no operator`,
		"p99 = 5ms":                   `operator "=": want one of <= >= == != < >`,
		"p99 =< 5ms":                  `operator "="`,
		"p90 <= 5ms":                  `metric "p90": want one of min mean p50 p95 p99 p99.9 max serverCPU`,
		"<= 5ms":                      `metric ""`,
		"P99 <= 5ms":                  `metric "P99"`,
		"p99 <= 5":                    `limit "5": want a time above 0 with its unit, as 5ms, 800us or 1.5s`,
		"p99 <= 0s":                   `limit "0s"`,
		"p99 <= -5ms":                 `limit "-5ms"`,
		"p99 <=":                      `limit ""`,
		"p99 <= 5ms <= 6ms":           `limit "5ms <= 6ms"`,
		"p99 == 5ms":                  `operator ==: p99 is measured, and never just a number; want one of <= >= < >`,
		"efficiency@0 >= 0.9":         `replicas "0": want 1 to 1000 after the @`,
		"efficiency@08 >= 0.9":        `replicas "08"`,
		"efficiency@x >= 0.9":         `replicas "x"`,
		"efficiency >= 95":            `limit "95": want a share, as 0.95 or 95%`,
		"efficiency >= NaN":           `limit "NaN"`,
		"failures == 0.5":             `limit "0.5": want a whole number, as 0`,
		"failures == 1e3":             `limit "1e3"`,
		"handshakesPerSecond >= 0x10": `limit "0x10": want a number, as 500`,
		"handshakesPerSecond >= Inf":  `limit "Inf"`,
		"Hybrid/p99 <= 5ms":           `mode "Hybrid": want a mode's name before the /`,
		"/p99 <= 5ms":                 `mode ""`,
		strings.Repeat("p", 129):      `129 characters: at most 128`,
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want an error with %s", text, got, err, want)
		}
	}
}

func TestAValuePassesWhenItsWholeIntervalDoes(t *testing.T) {
	for _, c := range []struct {
		text      string
		low, high float64
		want      Verdict
	}{
		{"p99 <= 5ms", 0.004, 0.005, Passed},
		{"p99 <= 5ms", 0.004, 0.0051, Undecided},
		{"p99 <= 5ms", 0.0051, 0.006, Failed},
		{"p99 < 5ms", 0.004, 0.005, Undecided},
		{"efficiency >= 0.95", 0.95, 1.01, Passed},
		{"efficiency >= 0.95", 0.94, 0.97, Undecided},
		{"efficiency >= 0.95", 0.90, 0.94, Failed},
		{"handshakesPerSecond > 100", 100, 100, Failed},
		{"failures == 0", 0, 0, Passed},
		{"failures == 0", 1, 1, Failed},
		{"failures != 0", 1, 1, Passed},
		{"failures <= 3", math.NaN(), math.NaN(), Unmeasured},
	} {
		threshold, err := Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := threshold.Compare(c.low, c.high); got != c.want {
			t.Errorf("%s of %v to %v: %s, want %s", c.text, c.low, c.high, got, c.want)
		}
	}
}

// Of the others one repetition has no interval.
func TestSomeMetricsNeedNoInterval(t *testing.T) {
	for _, m := range Metrics {
		if want := m == Min || m == Max || m == Resumption || m == Failures; m.Exact() != want {
			t.Errorf("%s: %t", m, m.Exact())
		}
	}
}

func TestThePageOnTheMethodHasTheMetrics(t *testing.T) {
	page, err := os.ReadFile("../../../docs/benchmarks/method.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range Metrics {
		if !strings.Contains(string(page), "`"+string(m)+"`") {
			t.Errorf("metric %s is not in it", m)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"p99 <= 5ms", "efficiency@8 >= 0.95", "failures == 0", "a-b/p99.9@1000<1h", "resumption >= 95 %", "x", "@/<", "p99 <= 9223372036s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		threshold, err := Parse(text)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if again, err := Parse(threshold.String()); err != nil || again != threshold {
			t.Errorf("%q is taken as %+v, which is read back as %+v, %v", text, threshold, again, err)
		}
		if math.IsNaN(threshold.Limit) || math.IsInf(threshold.Limit, 0) || threshold.Limit < 0 {
			t.Errorf("%q: limit %v", text, threshold.Limit)
		}
		if threshold.Metric.Unit() == Duration && threshold.Compare(threshold.Limit, threshold.Limit) == Undecided {
			t.Errorf("%q: an exact value is undecided", text)
		}
	})
}
