package stats

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func samples(ns, xs []float64) []Sample {
	var s []Sample
	for i := range ns {
		s = append(s, Sample{Block: 1, Replicas: int(ns[i]), PerSecond: xs[i]})
	}
	return s
}

// SPEC SDM91 on a SPARCcenter 2000, from N. J. Gunther, "Guerrilla Capacity
// Planning" (Springer, 2007); the coefficients are those that R's package usl
// 3.0.3 publishes in its README.
func TestFitOfTheSpecSDM91Benchmark(t *testing.T) {
	u, err := FitUSL(samples([]float64{1, 18, 36, 72, 108, 144, 216}, []float64{64.9, 995.9, 1652.4, 1853.2, 1828.9, 1775.0, 1702.2}))
	if err != nil {
		t.Fatal(err)
	}
	near(t, "λ", u.Lambda, 89.9952330, 1e-3)
	near(t, "σ", u.Sigma, 0.0277285, 1e-6)
	near(t, "κ", u.Kappa, 0.0001044, 5e-8)
	near(t, "residual error", u.ResidualError, 82.8, 0.1)
	peak, exists := u.Peak()
	near(t, "peak", peak, 96.52, 0.01)
	near(t, "throughput there", u.At(96.52), 1884, 0.5)
	if !exists || u.LargestReplicas != 216 || u.Samples != 7 {
		t.Errorf("%+v", u)
	}
	for name, c := range map[string]struct {
		interval Interval
		value    float64
	}{"λ": {u.LambdaInterval, u.Lambda}, "σ": {u.SigmaInterval, u.Sigma}, "κ": {u.KappaInterval, u.Kappa}} {
		if c.interval.Low < 0 || c.interval.Low >= c.value || c.interval.High <= c.value {
			t.Errorf("%s: %v in %+v", name, c.value, c.interval)
		}
	}
}

// A ray tracer on a NUMA machine, from the same book. There κ ends at its bound.
func TestFitOfTheRayTracer(t *testing.T) {
	u, err := FitUSL(samples([]float64{1, 4, 8, 12, 16, 20, 24, 28, 32, 48, 64}, []float64{20, 78, 130, 170, 190, 200, 210, 230, 260, 280, 310}))
	if err != nil {
		t.Fatal(err)
	}
	near(t, "λ", u.Lambda, 21.848843, 2e-2)
	near(t, "σ", u.Sigma, 0.057771, 1e-4)
	near(t, "κ", u.Kappa, 0, 1e-12)
	if peak, exists := u.Peak(); exists {
		t.Errorf("a peak at %v", peak)
	}
}

func TestAFitFindsTheLawThatMadeTheSamples(t *testing.T) {
	for _, p := range []parameters{{50, 0.02, 0.0005}, {50, 0, 0}, {3, 0.3, 0}, {2000, 0, 0.01}, {50, 0.9, 0.2}} {
		var s []Sample
		for _, n := range []int{1, 2, 4, 8, 16} {
			for block := range 3 {
				s = append(s, Sample{block, n, p.at(float64(n))})
			}
		}
		u, err := FitUSL(s)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "λ", u.Lambda, p.lambda, 1e-5*p.lambda)
		near(t, "σ", u.Sigma, p.sigma, 1e-5)
		near(t, "κ", u.Kappa, p.kappa, 1e-6)
		near(t, "R²", u.RSquared, 1, 1e-9)
	}
}

// Throughput that grows faster than the replicas is not taken as the law's.
func TestReplicasDoNotHelpEachOther(t *testing.T) {
	u, err := FitUSL(samples([]float64{1, 2, 4, 8}, []float64{40, 90, 190, 400}))
	if err != nil {
		t.Fatal(err)
	}
	if u.Sigma != 0 || u.Kappa != 0 || math.Abs(u.At(8)/8-u.Lambda) > 1e-9 {
		t.Errorf("%+v", u)
	}
}

// A hundred noisy runs of one law: about 95 in 100 intervals have to hold what
// they are of. The runs are always the same ones.
func TestIntervalsHoldWhatTheyAreOf(t *testing.T) {
	p := parameters{50, 0.03, 0.001}
	rng := rand.New(rand.NewPCG(7, 8))
	held, heldEfficiency := 0, 0
	for range 100 {
		var s []Sample
		for block := range 5 {
			for _, n := range []int{1, 2, 4, 8, 16} {
				s = append(s, Sample{block, n, p.at(float64(n)) * math.Exp(0.03*rng.NormFloat64())})
			}
		}
		u, err := FitUSL(s)
		if err != nil {
			t.Fatal(err)
		}
		e, err := u.Predict(32)
		if err != nil {
			t.Fatal(err)
		}
		if e.Interval.Low <= p.at(32) && p.at(32) <= e.Interval.High {
			held++
		}
		eff, err := Efficiency(s, 1, 8)
		if err != nil {
			t.Fatal(err)
		}
		if want := p.at(8) / 8 / p.at(1); eff.Interval.Low <= want && want <= eff.Interval.High {
			heldEfficiency++
		}
	}
	if held < 88 || held > 99 || heldEfficiency < 88 || heldEfficiency > 99 {
		t.Errorf("%d predictions and %d efficiencies of 100 hold the truth", held, heldEfficiency)
	}
}

// In a run where each block is slower or faster as a whole, blocks and not samples are what
// tells how much the curve varies.
func TestIntervalsHoldWhatTheyAreOfWhereBlocksDiffer(t *testing.T) {
	p := parameters{50, 0.03, 0.001}
	for blocks, least := range map[int]int{2: 85, 3: 88, 5: 88} {
		rng := rand.New(rand.NewPCG(9, uint64(blocks)))
		lambda, predicted := 0, 0
		for range 100 {
			var s []Sample
			for block := range blocks {
				common := 0.05 * rng.NormFloat64()
				for _, n := range []int{1, 2, 4, 8, 16} {
					s = append(s, Sample{block, n, p.at(float64(n)) * math.Exp(common+0.01*rng.NormFloat64())})
				}
			}
			u, err := FitUSL(s)
			if err != nil {
				t.Fatal(err)
			}
			e, err := u.Predict(32)
			if err != nil {
				t.Fatal(err)
			}
			if u.LambdaInterval.Low <= p.lambda && p.lambda <= u.LambdaInterval.High {
				lambda++
			}
			if e.Interval.Low <= p.at(32) && p.at(32) <= e.Interval.High {
				predicted++
			}
		}
		if lambda < least || predicted < least {
			t.Errorf("of %d blocks: %d of λ and %d predictions of 100 hold the truth", blocks, lambda, predicted)
		}
	}
}

func TestTheSameSamplesGiveTheSameIntervals(t *testing.T) {
	s := samples([]float64{1, 2, 4, 8, 16}, []float64{50, 97, 180, 350, 640})
	a, err := FitUSL(s)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := FitUSL(s)
	if a.SigmaInterval != b.SigmaInterval || a.KappaInterval != b.KappaInterval {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestWhatCannotBeFitted(t *testing.T) {
	for want, s := range map[string][]Sample{
		"samples of 3 numbers of replicas: a fit needs 4": samples([]float64{1, 2, 4, 4, 4}, []float64{1, 2, 3, 3, 3}),
		"a sample with 0 replicas":                        samples([]float64{0, 1, 2, 4}, []float64{1, 2, 3, 4}),
		"sample 0":                                        samples([]float64{1, 2, 4, 8}, []float64{1, 2, 3, 0}),
	} {
		if u, err := FitUSL(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v; want an error with %q", u, err, want)
		}
	}
	if _, err := (USL{Lambda: 1}).Predict(2); err == nil {
		t.Error("a prediction with an interval of nothing")
	}
}

// Three blocks on a machine that gets slower: 100, 80 and 60 a second of one
// replica. The ratios in the blocks are all alike.
func TestEfficiencyComparesInsideOfBlocks(t *testing.T) {
	var s []Sample
	for block, speed := range []float64{100, 80, 60} {
		s = append(s, Sample{block, 8, 8 * 0.9 * speed}, Sample{block, 1, speed}, Sample{block, 2, 2 * speed})
	}
	s = append(s, Sample{9, 8, 1}) // has no pair
	e, err := Efficiency(s, 1, 8)
	if err != nil || e.N != 3 {
		t.Fatalf("%+v, %v", e, err)
	}
	near(t, "E(8)", e.Value, 0.9, 1e-12)
	near(t, "width", e.Interval.High-e.Interval.Low, 0, 1e-12)
	e, err = Efficiency(s, 2, 8)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "E(8) to 2", e.Value, 0.9, 1e-12)
	if e, err := Efficiency(s, 1, 1); err != nil || e.Value != 1 || *e.Interval != (Interval{1, 1}) {
		t.Errorf("E(1): %+v, %v", e, err)
	}
}
