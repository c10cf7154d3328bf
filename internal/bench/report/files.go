package report

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"

	"qtls.dev/qtls/internal/bench/validity"
)

// Names of a report's files; what ends with Compressed is.
const (
	HTMLFile, JSONFile, MarkdownFile = "report.html", "report.json", "report.md"

	Compressed = ".gz"
)

const (
	// mostStored is the most that is stored in one place, in bytes: a ConfigMap has
	// room for 1 MiB.
	mostStored = 1000 << 10
	// MostJSON is the most that the JSON of a report has, in bytes: as much as that of
	// the greatest plan, where nothing is a result.
	MostJSON = 16 << 20
)

// ErrTooLarge is that a report is, for where it is stored.
var ErrTooLarge = errors.New("the report is too large")

// Place is what is stored together: files by their names.
type Place map[string][]byte

// Files are the report as it is stored, in one place or several, by what the places'
// names end with. The first, "", has report.json.gz, which is the report. It has
// report.html.gz and report.md.gz, too, and else each of these has a place of its
// own, "-html" and "-md". Where there is room beside, the first has report.md,
// report.json and report.html as they are, so that kubectl alone shows them. It is
// ErrTooLarge where report.json.gz has no room anywhere.
func (r Report) Files() (map[string]Place, error) {
	places, err := r.files()
	if errors.Is(err, ErrTooLarge) {
		places, err = r.brief().files()
	}
	return places, err
}

func (r Report) files() (map[string]Place, error) {
	text, err := r.JSON()
	if err != nil {
		return nil, err
	}
	page, err := r.HTML()
	if err != nil {
		return nil, err
	}
	if len(text) > MostJSON {
		return nil, fmt.Errorf("%w: its JSON has %d bytes, and %d are read", ErrTooLarge, len(text), MostJSON)
	}
	plain := map[string][]byte{HTMLFile: []byte(page), JSONFile: text, MarkdownFile: []byte(r.Markdown())}
	first, size := Place{}, 0
	fits := func(name string, content []byte) bool {
		if size+len(content) > mostStored {
			return false
		}
		first[name] = content
		size += len(content)
		return true
	}
	places := map[string]Place{"": first}
	for _, f := range []struct{ name, place string }{{JSONFile, ""}, {HTMLFile, "-html"}, {MarkdownFile, "-md"}} {
		packed, err := pack(plain[f.name])
		if err != nil {
			return nil, err
		}
		switch {
		case fits(f.name+Compressed, packed):
		case f.name == JSONFile:
			return nil, fmt.Errorf("%w: its JSON has %d bytes compressed, and a ConfigMap has room for %d", ErrTooLarge, len(packed), mostStored)
		case len(packed) <= mostStored: // else the JSON has to do: it says more
			places[f.place] = Place{f.name + Compressed: packed}
		}
	}
	for _, name := range []string{MarkdownFile, JSONFile, HTMLFile} {
		fits(name, plain[name])
	}
	return places, nil
}

// JSON of the report that a place has; false where it has none.
func (p Place) JSON() ([]byte, bool, error) {
	if text, ok := p[JSONFile]; ok {
		return text, true, nil
	}
	packed, ok := p[JSONFile+Compressed]
	if !ok {
		return nil, false, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, true, err
	}
	text, err := io.ReadAll(io.LimitReader(z, MostJSON+1))
	return text, true, err
}

func pack(content []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(content); err != nil {
		return nil, err
	}
	err = z.Close()
	return b.Bytes(), err
}

// shortened is what a report says that is brief.
const shortened = "The whole report is too large to be stored. Where several repetitions of a point broke one rule, it has of the first how, and of the others that they did."

// brief is a report without what only its JSON shows, and what may be most of it: of
// each rule that repetitions of a phase broke, how the second one and those after it
// did.
func (r Report) brief() Report {
	r.Notes = append(slices.Clone(r.Notes), shortened)
	r.Points = slices.Clone(r.Points)
	for i := range r.Points {
		p := &r.Points[i]
		if p.Capacity != nil {
			c := *p.Capacity
			c.Phase = c.brief()
			p.Capacity = &c
		}
		if p.Latency != nil {
			l := *p.Latency
			l.Phase = l.brief()
			p.Latency = &l
		}
	}
	return r
}

func (p Phase) brief() Phase {
	said := map[validity.Rule]bool{}
	p.Repetitions = slices.Clone(p.Repetitions)
	for i := range p.Repetitions {
		one := &p.Repetitions[i]
		one.Reasons = slices.Clone(one.Reasons)
		for j := range one.Reasons {
			reason := &one.Reasons[j]
			if said[reason.Rule] {
				reason.Message = ""
			}
			said[reason.Rule] = true
		}
	}
	return p
}
