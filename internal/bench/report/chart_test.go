package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/stats"
)

// smallReport has a mark of each kind in its charts, of two modes.
func smallReport() Report {
	const ms = time.Millisecond
	latency := func(split Split, times ...time.Duration) *Latency {
		l := &Latency{Phase: Phase{Valid: true}, Count: 200_000, Min: times[0], Max: times[5], Split: &split}
		for i, p := range Percentiles {
			l.Percentiles = append(l.Percentiles, stats.Percentile{P: p, Value: times[i+1], Low: times[i+1], High: times[i+1]})
		}
		return l
	}
	capacity := func(perSecond, low, high float64) *Capacity {
		return &Capacity{Phase: Phase{Valid: true}, PerSecond: stats.Estimate{Value: perSecond, N: 3, Interval: &stats.Interval{Low: low, High: high}}}
	}
	return Report{
		Modes: []Mode{{Name: "slow"}, {Name: "fast"}},
		Points: []Point{
			{Mode: "slow", Replicas: 1, Capacity: capacity(100, 80, 125), Bytes: Bytes{Sent: 1500, Received: 20_000, Certificate: 12_000},
				Latency: latency(Split{Client: 2 * ms, Network: ms, Server: 7 * ms}, 2*ms, 5*ms, 20*ms, 50*ms, 80*ms, 100*ms)},
			{Mode: "slow", Replicas: 2, Capacity: capacity(190, 150, 240)},
			{Mode: "slow", Replicas: 4, Capacity: capacity(300, 200, 450)},
			{Mode: "fast", Replicas: 1, Capacity: capacity(1000, 990, 1010), Bytes: Bytes{Sent: 600, Received: 3000, Certificate: 1000},
				Latency: latency(Split{Client: ms / 2, Network: ms / 10, Server: 2 * ms / 5}, ms/2, ms, 2*ms, 3*ms, 4*ms, 10*ms)},
		},
	}
}

func coordinateOf(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// axis says where a value is in a chart, by what a reader has: the ticks, and what is written at them.
func axis(t *testing.T, ticks []tick, logarithmic bool) func(value float64) float64 {
	t.Helper()
	if len(ticks) < 2 {
		t.Fatalf("an axis with ticks %+v", ticks)
	}
	place := func(v float64) float64 {
		if logarithmic {
			return math.Log(v)
		}
		return v
	}
	value := func(k tick) float64 {
		number, unit, _ := strings.Cut(k.Text, " ")
		return coordinateOf(t, number) * map[string]float64{"": 1, "µs": 1e-6, "ms": 1e-3, "s": 1, "B": 1, "kB": 1e3}[unit]
	}
	first, last := ticks[0], ticks[len(ticks)-1]
	from, to := place(value(first)), place(value(last))
	start, end := coordinateOf(t, first.At), coordinateOf(t, last.At)
	at := func(v float64) float64 { return start + (place(v)-from)/(to-from)*(end-start) }
	for _, k := range ticks {
		sits(t, "the tick of "+k.Text, k.At, at(value(k)))
	}
	return at
}

// sits checks a coordinate, which is written with one digit behind the point, as those of the ticks are.
func sits(t *testing.T, what, coordinate string, want float64) {
	t.Helper()
	if got := coordinateOf(t, coordinate); math.Abs(got-want) > 0.3 {
		t.Errorf("%s is at %v, want %.1f", what, got, want)
	}
}

func TestMarksOfLatenciesAreWhereTheirTimesAre(t *testing.T) {
	r := smallReport()
	c := r.latencyChart()
	at := axis(t, c.Ticks, true)
	for i, p := range r.compared() {
		row, l := c.Rows[i], p.Latency
		sits(t, p.Mode+", min", row.Line[0], at(l.Min.Seconds()))
		sits(t, p.Mode+", max", row.Line[1], at(l.Max.Seconds()))
		if len(row.Marks) != len(l.Percentiles) {
			t.Fatalf("%s: %d marks, want %d", p.Mode, len(row.Marks), len(l.Percentiles))
		}
		for j, q := range l.Percentiles {
			if class := strings.ReplaceAll(q.Name(), ".", ""); row.Marks[j].Class != class {
				t.Errorf("%s: mark %d is a %s, want %s", p.Mode, j, row.Marks[j].Class, class)
			}
			sits(t, p.Mode+", "+q.Name(), row.Marks[j].X, at(q.Value.Seconds()))
		}
	}
}

// Bars begin where the one before ends, and leave a gap that is no part of what they show.
func TestBarsAreAsLongAsWhatTheyShow(t *testing.T) {
	const gap = 1.5
	r := smallReport()
	for name, chart := range map[string]struct {
		c  *rowsChart
		of func(Point) []float64
	}{
		"split": {r.splitChart(), func(p Point) []float64 {
			s := p.Latency.Split
			return []float64{s.Client.Seconds(), s.Network.Seconds(), s.Server.Seconds()}
		}},
		"bytes": {r.bytesChart(), func(p Point) []float64 {
			return []float64{p.Bytes.Sent, p.Bytes.Received - p.Bytes.Certificate, p.Bytes.Certificate}
		}},
	} {
		at := axis(t, chart.c.Ticks, false)
		for i, p := range r.compared() {
			parts, bars, sum := chart.of(p), chart.c.Rows[i].Bars, 0.0
			if len(bars) != len(parts) {
				t.Fatalf("%s, %s: %d bars, want %d", name, p.Mode, len(bars), len(parts))
			}
			for j, b := range bars {
				what := fmt.Sprintf("%s, %s: %s", name, p.Mode, b.Class)
				sits(t, what, b.X, at(sum))
				sum += parts[j]
				sits(t, "the end of "+what, fmt.Sprint(coordinateOf(t, b.X)+coordinateOf(t, b.Width)+gap), at(sum))
			}
		}
	}
}

func TestPointsOfScalingAreWhereTheirFiguresAre(t *testing.T) {
	r := smallReport()
	c, _ := r.scalingChart("slow")
	x, y := axis(t, c.XTicks, false), axis(t, c.YTicks, false)
	if y(200) >= y(100) || x(2) <= x(1) {
		t.Errorf("more handshakes are not above fewer, or more replicas not beside fewer")
	}
	if len(c.Points) != 3 {
		t.Fatalf("%+v", c.Points)
	}
	for i, p := range c.Points {
		of := r.Points[i]
		e, name := of.Capacity.PerSecond, replicas(of.Replicas)
		sits(t, name, p.X, x(float64(of.Replicas)))
		sits(t, name+", the figure", p.Y, y(e.Value))
		sits(t, name+", the interval's low end", p.Low, y(e.Interval.Low))
		sits(t, name+", its high end", p.High, y(e.Interval.High))
	}
}
