package stats

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// Sample is a throughput that was measured with so many replicas. Those of one
// block were measured one after the other, in random order.
type Sample struct {
	Block     int
	Replicas  int
	PerSecond float64
}

// Efficiency is E(R) = T(R) / (R x T(1)), with base for 1: the share of the ideal
// throughput of so many replicas that is there. Blocks are paired.
func Efficiency(samples []Sample, base, replicas int) (Estimate, error) {
	if base < 1 || replicas < 1 {
		return Estimate{}, fmt.Errorf("efficiency of %d replicas to %d: want 1 or more", replicas, base)
	}
	at := map[int]map[int]float64{} // block, replicas
	for _, s := range samples {
		if at[s.Block] == nil {
			at[s.Block] = map[int]float64{}
		}
		if _, twice := at[s.Block][s.Replicas]; twice {
			return Estimate{}, fmt.Errorf("block %d has %d replicas twice", s.Block, s.Replicas)
		}
		at[s.Block][s.Replicas] = s.PerSecond
	}
	var one, many []float64
	for _, name := range slices.Sorted(maps.Keys(at)) { // the same sum each time
		block := at[name]
		t1, measured1 := block[base]
		tR, measuredR := block[replicas]
		if measured1 && measuredR {
			one, many = append(one, t1*float64(replicas)/float64(base)), append(many, tR)
		}
	}
	if len(one) == 0 {
		return Estimate{}, fmt.Errorf("no block has both %d and %d replicas", base, replicas)
	}
	if base == replicas {
		return Estimate{Value: 1, Interval: &Interval{1, 1}, N: len(one)}, nil // by definition
	}
	return PairedRatio(many, one)
}

// USL is Gunther's universal scalability law:
//
//	X(N) = λN / (1 + σ(N-1) + κN(N-1))
//
// λ is what one replica does, σ the share of the work that waits for its turn, κ
// what the replicas need to agree with each other.
type USL struct {
	Lambda float64 `json:"lambda"`
	Sigma  float64 `json:"sigma"`
	Kappa  float64 `json:"kappa"`

	// The intervals, and those of predictions, are of a bootstrap.
	LambdaInterval Interval `json:"lambdaInterval"`
	SigmaInterval  Interval `json:"sigmaInterval"`
	KappaInterval  Interval `json:"kappaInterval"`

	// ResidualError is the standard error of the residuals, RSquared the share of
	// the variance that the law explains.
	ResidualError float64 `json:"residualError"`
	RSquared      float64 `json:"rSquared"`
	Samples       int     `json:"samples"`
	// LargestReplicas is the most that was measured: beyond is a prediction.
	LargestReplicas int `json:"largestReplicas"`

	resampled []parameters
}

// parameters of the law.
type parameters struct{ lambda, sigma, kappa float64 }

func (p parameters) at(n float64) float64 {
	return p.lambda * n / (1 + p.sigma*(n-1) + p.kappa*n*(n-1))
}

// LeastSizes is of how many numbers of replicas a fit needs samples: one more
// than the law has parameters. With three it would go through any three points.
const LeastSizes = 4

// Of a bootstrap: a seed that is the same in every report, so that the same
// measurements give the same intervals.
const (
	resamples     = 2000
	bootstrapSeed = 0x51544c53
)

// FitUSL fits the law by least squares, with σ and κ at least 0: below, it would
// say that replicas help each other, and what looks like it is a dear first one.
//
// The intervals come from a bootstrap: the fit is done again on 2,000 sets of samples
// that are off the curve by other factors, as measured noise is. Unlike the delta
// method, that knows of the bounds. What slows a machine down for a while slows all
// samples of a block, so what they are off by is taken to the same random power, of
// mean 0 and variance 1 (the wild bootstrap, by clusters).
func FitUSL(samples []Sample) (USL, error) {
	sizes := map[int]bool{}
	ns, xs := make([]float64, len(samples)), make([]float64, len(samples))
	for i, s := range samples {
		if s.Replicas < 1 {
			return USL{}, fmt.Errorf("a sample with %d replicas: want 1 or more", s.Replicas)
		}
		sizes[s.Replicas] = true
		ns[i], xs[i] = float64(s.Replicas), s.PerSecond
	}
	if len(sizes) < LeastSizes {
		return USL{}, fmt.Errorf("samples of %d numbers of replicas: a fit needs %d", len(sizes), LeastSizes)
	}
	if err := positive(xs); err != nil {
		return USL{}, err
	}
	p := leastSquares(ns, xs)

	cluster, clusters, widen := clustersOf(samples)
	fitted, off := make([]float64, len(xs)), make([]float64, len(xs))
	var residuals, total, mean float64
	for _, x := range xs {
		mean += x / float64(len(xs))
	}
	for i, x := range xs {
		fitted[i] = p.at(ns[i])
		off[i] = math.Log(x/fitted[i]) * widen
		residuals += (x - fitted[i]) * (x - fitted[i])
		total += (x - mean) * (x - mean)
	}
	u := USL{
		Lambda: p.lambda, Sigma: p.sigma, Kappa: p.kappa, Samples: len(xs), LargestReplicas: int(slices.Max(ns)),
		ResidualError: math.Sqrt(residuals / float64(len(xs)-3)), RSquared: 1,
	}
	if total > 0 {
		u.RSquared = 1 - residuals/total
	}
	rng := rand.New(rand.NewPCG(bootstrapSeed, uint64(len(xs))))
	again, powers := make([]float64, len(xs)), make([]float64, clusters)
	for range resamples {
		for i := range powers {
			powers[i] = rng.NormFloat64()
		}
		for i := range again {
			again[i] = fitted[i] * math.Exp(powers[cluster[i]]*off[i])
		}
		// Not far from the fit: one descent from there is enough.
		next, _ := descend(ns, again, p.sigma, p.kappa)
		u.resampled = append(u.resampled, next)
	}
	u.LambdaInterval = u.interval(func(p parameters) float64 { return p.lambda })
	u.SigmaInterval = u.interval(func(p parameters) float64 { return p.sigma })
	u.KappaInterval = u.interval(func(p parameters) float64 { return p.kappa })
	return u, nil
}

// clustersOf samples are those that vary together: the block of each or, where there is
// only one, each by itself. widen is by how much more they vary than it seems: around a mean
// that is theirs, and as Student's t has it of few.
func clustersOf(samples []Sample) (of []int, n int, widen float64) {
	number := map[int]int{}
	for _, s := range samples {
		if _, known := number[s.Block]; !known {
			number[s.Block] = len(number)
		}
		of = append(of, number[s.Block])
	}
	n = len(number)
	free := n - 1
	if n == 1 {
		for i := range of {
			of[i] = i
		}
		n, free = len(of), len(of)-3 // the fit takes up three
	}
	return of, n, math.Sqrt(float64(n)/float64(free)) * tQuantile(float64(free)) / normalQuantile
}

// At is the fitted throughput of so many replicas.
func (u USL) At(replicas float64) float64 {
	return parameters{u.Lambda, u.Sigma, u.Kappa}.at(replicas)
}

// Predict is the same with the interval of the curve there. It is not that of
// one more measurement, and it takes the law to hold.
func (u USL) Predict(replicas int) (Estimate, error) {
	if replicas < 1 {
		return Estimate{}, fmt.Errorf("prediction for %d replicas: want 1 or more", replicas)
	}
	if len(u.resampled) == 0 {
		return Estimate{}, errors.New("predictions need a fit: this one was read from a report")
	}
	i := u.interval(func(p parameters) float64 { return p.at(float64(replicas)) })
	return Estimate{Value: u.At(float64(replicas)), Interval: &i, N: u.Samples}, nil
}

// Peak is with how many replicas the throughput is greatest; more make it less.
// Without κ there is no such number.
func (u USL) Peak() (replicas float64, exists bool) {
	if u.Kappa <= 0 || u.Sigma >= 1 {
		return 0, false
	}
	return math.Sqrt((1 - u.Sigma) / u.Kappa), true
}

// interval of a figure over the resampled fits.
func (u USL) interval(of func(parameters) float64) Interval {
	values := make([]float64, len(u.resampled))
	for i, p := range u.resampled {
		values[i] = of(p)
	}
	slices.Sort(values)
	at := func(q float64) float64 { return values[int(math.Round(q*float64(len(values)-1)))] }
	return Interval{at((1 - Confidence) / 2), at((1 + Confidence) / 2)}
}

// leastSquares fits the law by Levenberg and Marquardt's method, projected on
// σ >= 0 and κ >= 0. λ is not searched: for given σ and κ the best one is known.
func leastSquares(ns, xs []float64) parameters {
	best := parameters{}
	bestSquares := math.Inf(1)
	for _, start := range [...][2]float64{{0.05, 1e-4}, {0, 0}, {0.5, 0.01}} {
		p, squares := descend(ns, xs, start[0], start[1])
		if squares < bestSquares {
			best, bestSquares = p, squares
		}
	}
	return best
}

func descend(ns, xs []float64, sigma, kappa float64) (parameters, float64) {
	p, squares := profile(ns, xs, sigma, kappa)
	damping := 1e-3
	for range 500 {
		// Residuals x - λg, with g(n) = n/d and d = 1 + σ(n-1) + κn(n-1). Its
		// derivative by (σ, κ), with λ following: -(λ g' + λ' g).
		var gg, gx float64
		var gdg, xdg [2]float64
		for i, n := range ns {
			d := 1 + p.sigma*(n-1) + p.kappa*n*(n-1)
			g := n / d
			dg := [2]float64{-g * (n - 1) / d, -g * n * (n - 1) / d}
			gg += g * g
			gx += g * xs[i]
			for j := range dg {
				gdg[j] += g * dg[j]
				xdg[j] += xs[i] * dg[j]
			}
		}
		var dLambda [2]float64
		for j := range dLambda {
			dLambda[j] = (xdg[j] - 2*gx/gg*gdg[j]) / gg
		}
		var hessian [2][2]float64
		var gradient [2]float64
		for i, n := range ns {
			d := 1 + p.sigma*(n-1) + p.kappa*n*(n-1)
			g := n / d
			r := xs[i] - p.lambda*g
			jac := [2]float64{
				p.lambda*(-g*(n-1)/d) + dLambda[0]*g,
				p.lambda*(-g*n*(n-1)/d) + dLambda[1]*g,
			}
			for a := range jac {
				gradient[a] += jac[a] * r
				for b := range jac {
					hessian[a][b] += jac[a] * jac[b]
				}
			}
		}
		// A parameter at its bound that would go beyond it stays there.
		free := [2]bool{p.sigma > 0 || gradient[0] > 0, p.kappa > 0 || gradient[1] > 0}
		improved := false
		for ; damping < 1e12; damping *= 4 {
			step := solve(hessian, gradient, free, damping)
			next, nextSquares := profile(ns, xs, max(p.sigma+step[0], 0), max(p.kappa+step[1], 0))
			if nextSquares < squares {
				improved = squares-nextSquares > 1e-14*squares
				p, squares = next, nextSquares
				damping = max(damping/10, 1e-12)
				break
			}
		}
		if !improved {
			break
		}
	}
	return p, squares
}

// profile is the best λ for σ and κ, and the sum of squares then.
func profile(ns, xs []float64, sigma, kappa float64) (parameters, float64) {
	p := parameters{1, sigma, kappa}
	var gg, gx float64
	for i, n := range ns {
		g := p.at(n)
		gg += g * g
		gx += g * xs[i]
	}
	p.lambda = gx / gg
	var squares float64
	for i, n := range ns {
		r := xs[i] - p.at(n)
		squares += r * r
	}
	return p, squares
}

// solve is the damped step of the free ones of two parameters.
func solve(h [2][2]float64, g [2]float64, free [2]bool, damping float64) [2]float64 {
	a, d := h[0][0]*(1+damping), h[1][1]*(1+damping)
	switch {
	case free[0] && free[1]:
		if det := a*d - h[0][1]*h[1][0]; det > 0 {
			return [2]float64{(d*g[0] - h[0][1]*g[1]) / det, (a*g[1] - h[1][0]*g[0]) / det}
		}
	case free[0] && a > 0:
		return [2]float64{g[0] / a, 0}
	case free[1] && d > 0:
		return [2]float64{0, g[1] / d}
	}
	return [2]float64{}
}
