// Package load is what the operator asks of the pods of a load generator: all of
// them get the same Load, and each takes the segment of its index in the Job.
package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
)

const (
	// Version is that of the format.
	Version = 1
	// Variable is the environment variable that holds a Load.
	Variable = "QTLS_BENCH_LOAD"
	// IndexVariable is where an Indexed Job tells a pod its index.
	IndexVariable = "JOB_COMPLETION_INDEX"
)

// Phase is how connections are asked for.
type Phase string

const (
	// Capacity is a closed loop: each virtual user connects as soon as its last
	// connection has ended.
	Capacity Phase = "Capacity"
	// Latency has iterations begin at a constant rate, whatever became of those
	// before.
	Latency Phase = "Latency"
)

// Operation is what an iteration does.
type Operation string

const (
	Handshake Operation = "Handshake" // nothing but that
	Request   Operation = "Request"   // and an HTTP/1.1 exchange
	Transfer  Operation = "Transfer"  // and a request with a body of Size bytes
)

// Load is one measured phase, for all pods together. Durations are nanoseconds in
// JSON.
type Load struct {
	Version int `json:"version"`
	// Point comes back in each pod's shard.
	Point string `json:"point"`
	Pods  int    `json:"pods"`
	// Start is when all pods begin, in Unix nanoseconds. After WarmUp the window
	// is measured.
	Start  int64         `json:"start"`
	WarmUp time.Duration `json:"warmUp"`
	Window time.Duration `json:"window"`

	Phase Phase `json:"phase"`
	// VUs are the virtual users of all pods: in the phase Latency the most
	// connections at a time.
	VUs int `json:"vus"`
	// Rate is how many iterations begin in a second, for the phase Latency.
	Rate int `json:"rate,omitempty"`

	Operation Operation `json:"operation"`
	// Path of the HTTP requests.
	Path string `json:"path,omitempty"`
	// Size of a transfer in bytes.
	Size int `json:"size,omitempty"`

	Client Client `json:"client"`
}

// Client is how the pods connect. The names are those of the options in scripts,
// where README.md of k6 has them. What is empty is left to the generator.
type Client struct {
	Host                string   `json:"host"`
	Port                int      `json:"port"`
	SNI                 string   `json:"sni,omitempty"`
	Groups              []string `json:"groups,omitempty"`
	SignatureAlgorithms []string `json:"signatureAlgorithms,omitempty"`
	MinVersion          string   `json:"minVersion,omitempty"`
	MaxVersion          string   `json:"maxVersion,omitempty"`
	Resumption          bool     `json:"resumption,omitempty"`
	// Tickets is how many a handshake waits for; nil leaves it to the generator.
	Tickets *int `json:"tickets,omitempty"`
	// CAFile, CertificateFile and KeyFile are paths in the pod.
	CAFile             string `json:"caFile,omitempty"`
	CertificateFile    string `json:"certificateFile,omitempty"`
	KeyFile            string `json:"keyFile,omitempty"`
	InsecureSkipVerify bool   `json:"insecureSkipVerify,omitempty"`
	Provider           string `json:"provider,omitempty"`
	Properties         string `json:"properties,omitempty"`
	Timeout            string `json:"timeout,omitempty"`
}

// What a load may ask for.
const (
	mostPods = 1024
	// MostVUs of all pods together. Each is a thread of its pod's program.
	MostVUs    = 10000
	mostRate   = 1000000
	longest    = time.Hour
	smallest   = 1 << 10
	largest    = 1 << 20
	settleTime = 10 * time.Second
)

// Late is by how much a pod may miss Start: it then begins at once, inside the
// warm-up. That is at least as long, else the window would begin without the pod.
const Late = 2 * time.Second

// Begin is when the window begins, and End when it ends.
func (l Load) Begin() time.Time { return time.Unix(0, l.Start).Add(l.WarmUp) }
func (l Load) End() time.Time   { return l.Begin().Add(l.Window) }

// Deadline is when a pod that has not ended hangs.
func (l Load) Deadline() time.Time { return l.End().Add(time.Minute + settleTime) }

// Parse reads a load strictly: what a generator does not know it cannot do.
func Parse(text string) (Load, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	var l Load
	if err := d.Decode(&l); err != nil {
		return Load{}, fmt.Errorf("not a load: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Load{}, errors.New("not a load: there is something behind it")
	}
	return l, l.Validate()
}

// Text is what goes into the environment variable.
func (l Load) Text() (string, error) {
	if err := l.Validate(); err != nil {
		return "", err
	}
	text, err := json.Marshal(l)
	return string(text), err
}

// Validate says all that is wrong with a load. What is the client's the generator
// checks by itself.
func (l Load) Validate() error {
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s %v: want %s", field, value, want))
		}
	}
	between := func(field string, n, least, most int) {
		check(n >= least && n <= most, field, n, fmt.Sprintf("%d to %d", least, most))
	}
	check(l.Version == Version, "version", l.Version, fmt.Sprintf("%d; use the load generator's image of the operator's release", Version))
	check(l.Point != "", "point", `""`, "it to be given")
	between("pods", l.Pods, 1, mostPods)
	check(l.Start > 0, "start", l.Start, "Unix nanoseconds")
	check(l.WarmUp >= Late && l.WarmUp <= longest, "warmUp", l.WarmUp, fmt.Sprintf("%v to %v", Late, longest))
	check(l.Window >= 100*time.Millisecond && l.Window <= longest, "window", l.Window, fmt.Sprintf("100ms to %v", longest))
	between("vus", l.VUs, max(l.Pods, 1), MostVUs)
	switch l.Phase {
	case Capacity:
		check(l.Rate == 0, "rate", l.Rate, "none in the phase Capacity")
	case Latency:
		between("rate", l.Rate, 1, mostRate)
	default:
		check(false, "phase", strconv.Quote(string(l.Phase)), "Capacity or Latency")
	}
	switch l.Operation {
	case Handshake:
		check(l.Path == "", "path", l.Path, "none with the operation Handshake")
	case Request, Transfer:
		check(strings.HasPrefix(l.Path, "/"), "path", strconv.Quote(l.Path), "one that begins with /")
	default:
		check(false, "operation", strconv.Quote(string(l.Operation)), "Handshake, Request or Transfer")
	}
	if l.Operation == Transfer {
		between("size", l.Size, smallest, largest)
	} else {
		check(l.Size == 0, "size", l.Size, "none but with the operation Transfer")
	}
	check(l.Client.Host != "", "client.host", `""`, "it to be given")
	between("client.port", l.Client.Port, 1, 1<<16-1)
	return errors.Join(errs...)
}

// Segment is the part of the pod with an index of the Job.
func (l Load) Segment(index string) (shard.Segment, error) {
	n, err := strconv.Atoi(index)
	if err != nil || n < 0 || n >= l.Pods {
		return shard.Segment{}, fmt.Errorf("%s %q: want 0 to %d: the Job has to be Indexed, with %d completions", IndexVariable, index, l.Pods-1, l.Pods)
	}
	return shard.Segment{Index: n, Count: l.Pods}, nil
}

// Wait is how long a pod waits for Start. It refuses to begin so late that
// the window would not be whole.
func (l Load) Wait(now time.Time) (time.Duration, error) {
	wait := time.Unix(0, l.Start).Sub(now)
	if late := -wait; late > Late {
		return 0, fmt.Errorf("start passed %v ago, and a pod may be %v late: have the pods start earlier, or set start later", late.Round(time.Millisecond), Late)
	}
	return max(wait, 0), nil
}
