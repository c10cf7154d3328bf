package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"qtls.dev/qtls/internal/bench/stats"
)

// Charts are drawn in units of their viewBox, which is about as many pixels as a
// narrow screen has: text then has its size there, and grows a little elsewhere.
const (
	chartWidth = 360
	leftMargin = 46
	endMargin  = 12
)

// coordinate writes one, short.
func coordinate(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// tick of an axis.
type tick struct{ At, Text string }

// scale maps values to coordinates.
type scale struct {
	from, to   float64 // values
	start, end float64 // coordinates
	log        bool
}

func (s scale) at(v float64) float64 {
	f, a, b := v, s.from, s.to
	if s.log {
		f, a, b = math.Log(v), math.Log(a), math.Log(b)
	}
	return s.start + (f-a)/(b-a)*(s.end-s.start)
}

// steps from 0 to just above the greatest value, round and few.
func steps(greatest float64, few int) []float64 {
	if !(greatest > 1e-300) || math.IsInf(greatest, 0) {
		return []float64{0, 1}
	}
	raw := greatest / float64(few)
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * unit
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*unit >= raw {
			step = m * unit
			break
		}
	}
	var all []float64
	for i := 0; ; i++ {
		all = append(all, float64(i)*step)
		if float64(i)*step >= greatest {
			return all
		}
	}
}

// scalingChart is the curve of a mode.
type scalingChart struct {
	ID, Mode, Description, Law, Predicted, Label, Note, Relative string
	Height, Bottom, Left, Right                                  string
	XTicks, YTicks                                               []tick
	Ideal, Band, Line, Beyond                                    string // paths
	Measured                                                     string // where the measured ones end
	Points                                                       []scalingPoint
}

type scalingPoint struct {
	X, Y, Low, High string
	// Cut: the interval goes on above the chart.
	Cut   bool
	Valid bool
	Title string
}

func (r Report) scalingCharts() []scalingChart {
	var charts []scalingChart
	for i, m := range r.Modes {
		if c, ok := r.scalingChart(m.Name); ok {
			c.ID = fmt.Sprintf("scaling-%d", i)
			charts = append(charts, c)
		}
	}
	return charts
}

func (r Report) scalingChart(mode string) (scalingChart, bool) {
	const top, bottom, height = 12, 228, 264
	curve, fitted := r.scaling(mode)
	var points []Point
	greatest, mostReplicas := 0.0, 1
	for _, p := range r.Points {
		if p.Mode == mode && p.Capacity != nil && p.Capacity.PerSecond.N > 0 {
			points = append(points, p)
			greatest, mostReplicas = max(greatest, shown(p.Capacity.PerSecond)), max(mostReplicas, p.Replicas)
		}
	}
	if len(points) == 0 {
		return scalingChart{}, false
	}
	c := scalingChart{Mode: mode, Law: curve.Law(), Predicted: curve.Predicted(), Label: curve.Label, Note: curve.Note, Relative: curve.relative(), Height: fmt.Sprint(height), Bottom: fmt.Sprint(bottom), Left: fmt.Sprint(leftMargin), Right: fmt.Sprint(chartWidth - endMargin)}
	if !fitted {
		c.Law = "No fit: no point is valid."
	}
	last := mostReplicas
	measured := mostReplicas // up to here the curve is no prediction
	if curve.Fit != nil {
		measured = curve.Fit.LargestReplicas
	}
	for _, a := range curve.Curve {
		greatest, last = max(greatest, a.Value), max(last, a.Replicas)
	}
	x := scale{from: 0, to: float64(last), start: leftMargin, end: chartWidth - endMargin}
	ys := steps(greatest*1.02, 5)
	y := scale{from: 0, to: ys[len(ys)-1], start: bottom, end: top}
	for _, v := range ys {
		c.YTicks = append(c.YTicks, tick{coordinate(y.at(v)), short(v)})
	}
	for _, v := range steps(float64(last), 6) {
		if v == math.Trunc(v) && v <= float64(last) {
			c.XTicks = append(c.XTicks, tick{coordinate(x.at(v)), strconv.FormatFloat(v, 'f', 0, 64)})
		}
	}
	at := func(n, v float64) string { return coordinate(x.at(n)) + " " + coordinate(y.at(min(v, y.to))) }

	// The ideal goes through the point that efficiencies relate to.
	if base, ok := r.point(mode, curve.Base); ok && base.Capacity != nil {
		each := base.Capacity.PerSecond.Value / float64(curve.Base)
		c.Ideal = "M" + at(0, 0) + " L" + at(min(float64(last), y.to/each), min(float64(last)*each, y.to))
	}
	var upper, lower, line, beyond []string
	for i, a := range curve.Curve {
		n := float64(a.Replicas)
		upper, lower = append(upper, at(n, a.PerSecond.High)), append([]string{at(n, a.PerSecond.Low)}, lower...)
		if a.Replicas <= measured {
			line = append(line, at(n, a.Value))
		}
		if a.Replicas >= measured || i+1 < len(curve.Curve) && curve.Curve[i+1].Replicas > measured {
			beyond = append(beyond, at(n, a.Value))
		}
	}
	if len(upper) > 1 {
		c.Band = "M" + strings.Join(append(upper, lower...), " L") + " Z"
		c.Line, c.Beyond = "M"+strings.Join(line, " L"), "M"+strings.Join(beyond, " L")
		c.Measured = coordinate(x.at(float64(measured)))
	}
	var said []string
	for _, p := range points {
		e := p.Capacity.PerSecond
		s := scalingPoint{X: coordinate(x.at(float64(p.Replicas))), Y: coordinate(y.at(e.Value)), Valid: p.Capacity.Valid}
		if e.Interval != nil {
			s.Low, s.High = coordinate(y.at(max(e.Interval.Low, 0))), coordinate(y.at(min(e.Interval.High, y.to)))
			s.Cut = e.Interval.High > y.to
		}
		s.Title = fmt.Sprintf("%d replicas: %s handshakes/s", p.Replicas, withInterval(e, figure3))
		if !p.Capacity.Valid {
			s.Title += ", invalid"
		}
		c.Points, said = append(c.Points, s), append(said, s.Title)
	}
	c.Description = strings.Join(said, "; ") + "."
	return c, true
}

// shown is how far up a chart has to reach for a figure: not to the end of an interval
// that is so wide that it would flatten everything else.
func shown(e stats.Estimate) float64 {
	if e.Interval != nil {
		return min(e.Interval.High, 2*e.Value)
	}
	return e.Value
}

// short is a figure for an axis.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + "k"
	default:
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
}

// rowsChart has a row for each mode: its name, its figures, and the marks.
type rowsChart struct {
	ID          string
	Title       string
	Description string
	Legend      []legend
	Height      string
	AxisY       string
	GridTop     string
	Ticks       []tick
	Rows        []chartRow
}

type legend struct{ Class, Text string }

type chartRow struct {
	NameY, TextY, MarkY, BarY string
	Name, Figures             string
	Line                      [2]string // from and to
	Marks                     []mark
	Bars                      []bar
	Invalid                   bool
}

type mark struct{ Class, X, Title string }
type bar struct{ Class, X, Width, Title string }

const rowHeight, barHeight = 56, 13

func (c *rowsChart) row(i int) chartRow {
	top := 14 + float64(i*rowHeight)
	return chartRow{NameY: coordinate(top), TextY: coordinate(top + 14), BarY: coordinate(top + 20), MarkY: coordinate(top + 20 + barHeight/2.0)}
}

func (c *rowsChart) finish(rows int) {
	end := float64(rows*rowHeight) + 4
	c.GridTop, c.AxisY, c.Height = "4", coordinate(end), coordinate(end+20)
}

// comparedAt is the number of replicas at which modes are compared: the one where
// most of them have a valid latency, the greatest of those.
func (r Report) comparedAt() int {
	counts := map[int]int{}
	best := 0
	for _, p := range r.Points {
		if p.Latency != nil && p.Latency.Count > 0 {
			counts[p.Replicas]++
			if p.Latency.Valid {
				counts[p.Replicas] += 1000
			}
		}
	}
	for n, count := range counts {
		if best == 0 || count > counts[best] || count == counts[best] && n > best {
			best = n
		}
	}
	return best
}

// compared are the points of all modes there.
func (r Report) compared() []Point {
	n := r.comparedAt()
	var points []Point
	for _, m := range r.Modes {
		if p, ok := r.point(m.Name, n); ok && p.Latency != nil && p.Latency.Count > 0 {
			points = append(points, p)
		}
	}
	return points
}

func (r Report) latencyChart() *rowsChart {
	points := r.compared()
	if len(points) == 0 {
		return nil
	}
	c := &rowsChart{ID: "latency", Title: fmt.Sprintf("Handshake latency by mode, at %s", replicas(r.comparedAt())),
		Legend: []legend{{"p50", "p50"}, {"p95", "p95"}, {"p99", "p99"}, {"p999", "p99.9"}, {"range", "min to max"}}}
	low, high, failed := math.Inf(1), 0.0, false
	for _, p := range points {
		low, high, failed = min(low, max(p.Latency.Min.Seconds(), 1e-6)), max(high, p.Latency.Max.Seconds()), failed || p.Latency.Failed > 0
	}
	if failed {
		c.Legend[len(c.Legend)-1].Text += "; to the edge where attempts failed, which took longer"
	}
	x := scale{from: low / 1.1, to: max(high, low*2) * 1.1, start: endMargin, end: chartWidth - endMargin, log: true}
	lastAt := -100.0
	for _, v := range logSteps(x.from, x.to) {
		if at := x.at(v); at-lastAt > 34 && at < chartWidth-20 && at > 14 {
			c.Ticks = append(c.Ticks, tick{coordinate(at), plain(v)})
			lastAt = at
		}
	}
	classes := []string{"p50", "p95", "p99", "p999"}
	var said []string
	for i, p := range points {
		row := c.row(i)
		l := p.Latency
		row.Name, row.Invalid = shorten(p.Mode), !l.Valid
		row.Line = [2]string{coordinate(x.at(max(l.Min.Seconds(), x.from))), coordinate(x.at(l.Max.Seconds()))}
		if l.Failed > 0 { // those took longer
			row.Line[1] = coordinate(chartWidth)
		}
		var figures []string
		for j, q := range l.Percentiles {
			if !q.Available() || q.Value <= 0 || j >= len(classes) {
				continue
			}
			row.Marks = append(row.Marks, mark{classes[j], coordinate(x.at(q.Value.Seconds())), q.Name() + " " + duration(q.Value)})
			if q.P == 50 || q.P == 99 {
				figures = append(figures, q.Name()+" "+duration(q.Value))
			}
		}
		row.Figures = strings.Join(figures, " · ")
		c.Rows, said = append(c.Rows, row), append(said, p.Mode+": "+strings.Join(figures, ", "))
	}
	c.Description = strings.Join(said, "; ") + "."
	c.finish(len(points))
	return c
}

// shorten keeps a name inside its chart: the API's names have 30 characters.
func shorten(name string) string {
	if r := []rune(name); len(r) > 30 {
		return string(r[:29]) + "…"
	}
	return name
}

func replicas(n int) string {
	if n == 1 {
		return "one replica"
	}
	return fmt.Sprintf("%d replicas", n)
}

// plain is a time for an axis.
func plain(s float64) string {
	switch {
	case s >= 0.9999:
		return strconv.FormatFloat(s, 'g', 3, 64) + " s"
	case s >= 0.9999e-3:
		return strconv.FormatFloat(s*1e3, 'g', 3, 64) + " ms"
	default:
		return strconv.FormatFloat(s*1e6, 'g', 3, 64) + " µs"
	}
}

// logSteps are 1, 2 and 5 times the powers of ten.
func logSteps(from, to float64) []float64 {
	var all []float64
	for e := math.Floor(math.Log10(from)); e <= math.Ceil(math.Log10(to)); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= from && v <= to {
				all = append(all, v)
			}
		}
	}
	return all
}

// stack is a row of bars, one after the other.
type stack struct {
	name    string
	invalid bool
	figures string
	parts   []part
}

type part struct {
	class, text string
	value       float64
}

func stacked(c *rowsChart, stacks []stack, format, axis func(float64) string) *rowsChart {
	greatest := 0.0
	for _, s := range stacks {
		total := 0.0
		for _, p := range s.parts {
			total += p.value
		}
		greatest = max(greatest, total)
	}
	if greatest == 0 {
		return nil
	}
	ticks := steps(greatest, 4)
	x := scale{from: 0, to: max(greatest, ticks[len(ticks)-2]) * 1.02, start: endMargin, end: chartWidth - endMargin}
	for _, v := range ticks {
		if at := x.at(v); at <= chartWidth-22 {
			c.Ticks = append(c.Ticks, tick{coordinate(at), axis(v)})
		}
	}
	var said []string
	for i, s := range stacks {
		row := c.row(i)
		row.Name, row.Figures, row.Invalid = shorten(s.name), s.figures, s.invalid
		from := 0.0
		var texts []string
		for _, p := range s.parts {
			// A gap between two bars tells them apart without their colours.
			width := x.at(from+p.value) - x.at(from)
			if width > 0 {
				row.Bars = append(row.Bars, bar{p.class, coordinate(x.at(from)), coordinate(max(width-1.5, 0.5)), p.text + " " + format(p.value)})
			}
			texts = append(texts, p.text+" "+format(p.value))
			from += p.value
		}
		c.Rows, said = append(c.Rows, row), append(said, s.name+": "+strings.Join(texts, ", "))
	}
	c.Description = strings.Join(said, "; ") + "."
	c.finish(len(stacks))
	return c
}

func (r Report) splitChart() *rowsChart {
	var stacks []stack
	for _, p := range r.compared() {
		if s := p.Latency.Split; s != nil {
			stacks = append(stacks, stack{p.Mode, !p.Latency.Valid, "mean " + duration(s.Client+s.Network+s.Server), []part{
				{"client", "client", s.Client.Seconds()}, {"network", "network", s.Network.Seconds()}, {"server", "server", s.Server.Seconds()},
			}})
		}
	}
	return stacked(&rowsChart{ID: "split", Title: fmt.Sprintf("Whose time a mean handshake is, at %s", replicas(r.comparedAt())),
		Legend: []legend{{"client", "client computes"}, {"network", "network"}, {"server", "server, queueing included"}}}, stacks, seconds, plain)
}

func (r Report) bytesChart() *rowsChart {
	var stacks []stack
	for _, p := range r.compared() {
		b := p.Bytes
		stacks = append(stacks, stack{p.Mode, false, byteCount(b.Sent + b.Received), []part{
			{"sent", "sent", b.Sent}, {"received", "received", max(b.Received-b.Certificate, 0)}, {"certificate", "received certificates", b.Certificate},
		}})
	}
	return stacked(&rowsChart{ID: "bytes", Title: "Bytes of a handshake on the wire",
		Legend: []legend{{"sent", "sent by the client"}, {"received", "received"}, {"certificate", "received certificates"}}}, stacks, byteCount, byteCount)
}

// ratioChart is a row's ratio to the baseline: a mark, its interval, and the line
// of no change.
type ratioChart struct{ X, Low, High, One string }

// comparedRow is a row of a comparison with its chart, where it has a ratio.
type comparedRow struct {
	Row
	Figures cell
	Chart   *ratioChart
}

// draw gives rows their charts, on one scale: as far to both sides as the farthest
// interval reaches.
func draw(rows []Row) (drawn []comparedRow, from, to string) {
	farthest := 1.1
	for _, row := range rows {
		if i := row.Ratio.Interval; i != nil && i.Low > 0 {
			farthest = max(farthest, i.High, 1/i.Low)
		}
	}
	farthest = min(farthest, 10)
	x := scale{from: 1 / farthest, to: farthest, start: 5, end: 115, log: true}
	at := func(v float64) string { return coordinate(x.at(min(max(v, x.from), x.to))) }
	for _, row := range rows {
		d := comparedRow{Row: row, Figures: estimate(row.Ratio, share3)}
		if i := row.Ratio.Interval; row.Reason == "" && i != nil && row.Ratio.Value > 0 {
			d.Chart = &ratioChart{at(row.Ratio.Value), at(i.Low), at(i.High), at(1)}
		}
		drawn = append(drawn, d)
	}
	return drawn, figure3(x.from), figure3(x.to)
}
