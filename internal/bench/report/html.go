package report

import (
	_ "embed"
	"html/template"
	"strings"
	"time"

	"qtls.dev/qtls/internal/bench/threshold"
)

//go:embed page.html
var page string

// Every string of a report is escaped by html/template for its place. The page
// loads nothing and runs nothing, and its policy forbids both.
var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"minute":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") },
	"machine":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"change":    func(r comparedRow) string { return changeText(r.Row) },
	"twoLines":  twoLines,
	"orNothing": orNothing,
}).Parse(page))

// HTML of the report: one file with everything in it.
func (r Report) HTML() (string, error) {
	status := "Measured"
	if passed := r.Passed(); passed != nil && passed.Holds {
		status = "Passed"
	} else if passed != nil {
		status = "NotPassed"
	}
	// What kind of curve it is stands above them all, if it is the same for all.
	var labels []string
	charts := r.scalingCharts()
	for _, c := range charts {
		labels = appendNew(labels, c.Label)
	}
	if len(labels) == 1 {
		for i := range charts {
			charts[i].Label = ""
		}
	} else {
		labels = nil
	}
	var changed, unchanged []comparedRow
	var from, to, reading string
	if r.Comparison != nil {
		reading = r.Comparison.reading()
		var rows []comparedRow
		rows, from, to = draw(r.Comparison.Rows)
		for _, row := range rows {
			if row.Change == Same {
				unchanged = append(unchanged, row)
			} else {
				changed = append(changed, row)
			}
		}
	}
	header, evidence := r.evidence()
	var b strings.Builder
	err := pageTemplate.Execute(&b, map[string]any{
		"Report": r, "Status": status, "Passed": threshold.Passed, "Undecided": threshold.Undecided,
		"Scaling": charts, "Labels": labels,
		"Charts":         present(r.latencyChart(), r.splitChart(), r.bytesChart()),
		"Sections":       r.sections(),
		"Servers":        r.servers(),
		"EvidenceHeader": header, "Evidence": evidence, "Observing": observing, "Exchanging": exchanging,
		"Environment": r.environment(),
		"Method":      method, "Comparing": reading, "Others": others, "Beside": beside, "Changed": changed, "Unchanged": unchanged, "RatioFrom": from, "RatioTo": to,
	})
	return b.String(), err
}

func present(charts ...*rowsChart) []*rowsChart {
	var all []*rowsChart
	for _, c := range charts {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}
