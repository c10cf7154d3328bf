package report

import (
	"math"
	"strconv"
	"strings"
	"time"

	"qtls.dev/qtls/internal/bench/stats"
)

// figure3 writes three significant digits, and all digits before the point.
func figure3(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case a == 0:
		return "0"
	case a >= 99.95:
		return thousands(strconv.FormatFloat(math.Round(v), 'f', 0, 64))
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.01:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
}

// significant3 is for coefficients, which are small.
func significant3(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

// numbers as a sentence lists them.
func numbers(all []int) string {
	var b strings.Builder
	for i, n := range all {
		switch {
		case i > 0 && i == len(all)-1:
			b.WriteString(" and ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}

// share3 is for shares near 1, where the third digit tells.
func share3(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }

// thousands puts a comma behind every third digit from the right.
func thousands(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

func whole(n int64) string { return thousands(strconv.FormatInt(n, 10)) }

// seconds writes a time in the unit that suits it.
func seconds(s float64) string {
	switch a := math.Abs(s); {
	case a >= 0.9995:
		return figure3(s) + " s"
	case a >= 0.9995e-3:
		return figure3(s*1e3) + " ms"
	default:
		return figure3(s*1e6) + " µs"
	}
}

func duration(d time.Duration) string { return seconds(d.Seconds()) }

func percent(share float64) string {
	if share == 0 || share == 1 {
		return strconv.FormatFloat(share*100, 'f', 0, 64) + " %"
	}
	return strconv.FormatFloat(share*100, 'f', 1, 64) + " %"
}

func byteCount(n float64) string {
	if n < 1000 {
		return strconv.FormatFloat(math.Round(n), 'f', 0, 64) + " B"
	}
	if n >= 1e6 {
		return figure3(n/1e6) + " MB"
	}
	return figure3(n/1000) + " kB"
}

func mebibytes(n int64) string { return figure3(float64(n)/(1<<20)) + " MiB" }

func millicores(cpus float64) string {
	return strconv.FormatFloat(math.Round(cpus*1000), 'f', 0, 64) + "m"
}

// between writes the unit once where it is the same.
func between(low, high float64, format func(float64) string) string {
	from, to := format(low), format(high)
	number, unit, hasUnit := strings.Cut(from, " ")
	if _, same, _ := strings.Cut(to, " "); hasUnit && same == unit {
		from = number
	}
	return from + " to " + to
}

// twoLines is such a text as a cell.
func twoLines(text string) cell {
	value, interval, _ := strings.Cut(strings.TrimSuffix(text, ")"), " (")
	return cell{value, interval}
}

// withInterval is a value with its interval in parentheses.
func withInterval(e stats.Estimate, format func(float64) string) string {
	return estimate(e, format).String()
}
