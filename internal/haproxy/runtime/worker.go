package runtime

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Admin is the socket of a worker, at level admin.
type Admin struct{ Socket }

// Info is what a worker says of itself.
type Info struct {
	// Version of HAProxy.
	Version string
	PID     int
	// Started, in Unix seconds, with the PID tells one worker from another: in
	// a container that was restarted the PIDs come again.
	Started int64
	// Stopping workers finish their connections and take no more.
	Stopping bool
	// Connections that are open, and how many there may be.
	Connections, MaxConnections int
	// TLSConnections that were made since it started.
	TLSConnections int
	Threads        int
}

// Info asks for the worker's state.
func (a Admin) Info(ctx context.Context) (Info, error) {
	answer, err := a.do(ctx, "show info")
	if err != nil {
		return Info{}, err
	}
	return parseInfo(answer)
}

func parseInfo(answer string) (Info, error) {
	fields := fieldsOf(answer)
	number := func(name string) int {
		n, _ := strconv.Atoi(fields[name])
		return n
	}
	i := Info{Version: fields["Version"], PID: number("Pid"), Stopping: fields["Stopping"] == "1",
		Started: int64(number("Start_time_sec")), Connections: number("CurrConns"), MaxConnections: number("Maxconn"),
		TLSConnections: number("CumSslConns"), Threads: number("Nbthread")}
	if i.PID <= 0 || i.Version == "" {
		return Info{}, fmt.Errorf("show info: no Pid or no Version: %w", errUnparsed)
	}
	return i, nil
}

// fieldsOf reads lines of the form `Name: value`.
func fieldsOf(answer string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(answer) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return fields
}

// Certificate is the leaf that a worker serves from a file.
type Certificate struct {
	// SerialNumber in lower-case hex.
	SerialNumber string
	NotAfter     time.Time
}

// ErrNoCertificate says that the configuration names no such file.
var ErrNoCertificate = errors.New("HAProxy uses no certificate of that name")

// Certificate asks which certificate is served for a file, by the name that the
// configuration has for it.
func (a Admin) Certificate(ctx context.Context, file string) (Certificate, error) {
	answer, err := a.do(ctx, "show ssl cert "+escape(file))
	if err != nil {
		return Certificate{}, err
	}
	return parseCertificate(answer)
}

func parseCertificate(answer string) (Certificate, error) {
	fields := fieldsOf(answer)
	text, ok := fields["Serial"]
	if !ok {
		if strings.Contains(answer, "Can't display the certificate") {
			return Certificate{}, ErrNoCertificate
		}
		return Certificate{}, fmt.Errorf("show ssl cert: no serial number: %w", errUnparsed)
	}
	serial, ok := new(big.Int).SetString(text, 16)
	if !ok {
		return Certificate{}, fmt.Errorf("show ssl cert: serial number %.80q: %w", text, errUnparsed)
	}
	// "Nov 21 08:57:42 2026 GMT", the day padded with a space.
	notAfter, err := time.Parse("Jan _2 15:04:05 2006 MST", fields["notAfter"])
	if err != nil {
		return Certificate{}, fmt.Errorf("show ssl cert: notAfter %.80q: %w", fields["notAfter"], errUnparsed)
	}
	return Certificate{SerialNumber: serial.Text(16), NotAfter: notAfter.UTC()}, nil
}

// MaxCertificate is how long a chain and key may be, in bytes, for
// SetCertificate: the command has to fit HAProxy's buffer (tune.bufsize, 65536
// in a gateway) with room for what surrounds it. A longer one needs a reload.
const MaxCertificate = 60000

// SetCertificate has the worker serve another chain and key in place of the
// file's, from the next handshake on. It is a transaction: a chain or key that
// HAProxy refuses (*Refusal) changes nothing. What keeps HAProxy from it and is
// not about their content is another error.
func (a Admin) SetCertificate(ctx context.Context, file string, pem []byte) error {
	name := escape(file)
	answer, err := a.do(ctx, "set ssl cert "+name+" <<\n"+payload(pem))
	if err != nil {
		return err
	}
	if !strings.Contains(answer, "Transaction created") && !strings.Contains(answer, "Transaction updated") {
		return a.notSet(ctx, name, answer)
	}
	answer, err = a.do(ctx, "commit ssl cert "+name)
	if err != nil {
		a.abort(ctx, name)
		return err
	}
	if !strings.Contains(answer, "Success!") {
		return a.notSet(ctx, name, answer)
	}
	return nil
}

var (
	// otherTransaction names the file of the one transaction that there is. `set`
	// may have taken the payload into it, and only `commit` says so.
	otherTransaction = regexp.MustCompile(`ongoing transaction is about '([^']+)'`)
	// passing is what HAProxy says whatever the chain and key are. No name of a
	// file has spaces.
	passing = regexp.MustCompile(`(?i)ongoing transaction|operations on certificates are currently locked|alloc(ate)? memory|not enough memory`)
)

// notSet ends the open transaction, also where an agent that has ended left it
// for another file, and says what the answer means.
func (a Admin) notSet(ctx context.Context, name, answer string) error {
	if other := otherTransaction.FindStringSubmatch(answer); other != nil {
		name = escape(other[1])
	}
	a.abort(ctx, name)
	if passing.MatchString(answer) {
		return fmt.Errorf("set ssl cert: %s", Message(answer))
	}
	return &Refusal{Message(answer)}
}

// abort forgets an open transaction, so that the next can begin. That there is
// none is no error.
func (a Admin) abort(ctx context.Context, name string) {
	_, _ = a.do(context.WithoutCancel(ctx), "abort ssl cert "+name)
}

// payload is what follows a command: an empty line ends it, so it has none.
func payload(pem []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(pem)) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String() // do adds the newline that makes the empty line
}

// escape a word of a command: HAProxy splits at spaces and semicolons.
func escape(word string) string {
	return strings.NewReplacer(`\`, `\\`, " ", `\ `, ";", `\;`).Replace(word)
}

// SetServer has new connections go to an address. A server in use is taken out
// of service first: that closes its idle connections to the former address.
func (a Admin) SetServer(ctx context.Context, backend, server string, to netip.AddrPort) error {
	name := escape(backend + "/" + server)
	answer, err := a.do(ctx, fmt.Sprintf("set server %s state maint; set server %s addr %s port %d; set server %s state ready",
		name, name, to.Addr(), to.Port(), name))
	if err != nil {
		return err
	}
	return serverAnswer(answer)
}

// DisableServer takes a server out of service; its open connections go on.
func (a Admin) DisableServer(ctx context.Context, backend, server string) error {
	answer, err := a.do(ctx, fmt.Sprintf("set server %s state maint", escape(backend+"/"+server)))
	if err != nil {
		return err
	}
	return serverAnswer(answer)
}

// serverAnswer finds what is not a note of a change that was made.
func serverAnswer(answer string) error {
	for line := range strings.Lines(answer) {
		line = strings.TrimSpace(line)
		if line == "" || strings.Contains(line, "changed from") || strings.HasPrefix(line, "no need to change") || line == "nothing changed" {
			continue
		}
		return &Refusal{Message(line)}
	}
	return nil
}

// Server is one server of a backend, as a worker has it.
type Server struct {
	Backend, Name string
	Address       netip.Addr // the zero Addr where it has none
	Port          uint16
	// Disabled servers get no connections.
	Disabled bool
}

// Servers asks for every server's address and state.
func (a Admin) Servers(ctx context.Context) ([]Server, error) {
	answer, err := a.do(ctx, "show servers state")
	if err != nil {
		return nil, err
	}
	return parseServers(answer)
}

// Bits of srv_admin_state (HAProxy's SRV_ADMF_*).
const (
	adminForcedMaintenance = 0x01
	adminForcedDrain       = 0x08
)

// parseServers reads the state file format, version 1 (management guide, `show
// servers state`).
func parseServers(answer string) ([]Server, error) {
	var servers []Server
	for line := range strings.Lines(answer) {
		fields := strings.Fields(line)
		if len(fields) < 19 || strings.HasPrefix(line, "#") {
			continue
		}
		admin, err := strconv.ParseUint(fields[6], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("show servers state: srv_admin_state %.20q: %w", fields[6], errUnparsed)
		}
		port, err := strconv.ParseUint(fields[18], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("show servers state: srv_port %.20q: %w", fields[18], errUnparsed)
		}
		address, err := netip.ParseAddr(fields[4])
		if err != nil && fields[4] != "-" {
			return nil, fmt.Errorf("show servers state: srv_addr %.80q: %w", fields[4], errUnparsed)
		}
		servers = append(servers, Server{
			Backend: fields[1], Name: fields[3], Address: address, Port: uint16(port),
			Disabled: admin&(adminForcedMaintenance|adminForcedDrain) != 0,
		})
	}
	return servers, nil
}

// Proxy is a frontend or a backend in use.
type Proxy struct {
	Name     string
	Frontend bool
	// Sessions that are open, and all that there were.
	Sessions, AllSessions int
	// ActiveServers of a backend.
	ActiveServers int
}

// Proxies asks for the counters of frontends and backends.
func (a Admin) Proxies(ctx context.Context) ([]Proxy, error) {
	answer, err := a.do(ctx, "show stat -1 3 -1") // 3: frontends and backends, no servers
	if err != nil {
		return nil, err
	}
	return parseProxies(answer)
}

// DisableFrontend has a frontend take no more connections. Those that it has
// go on.
func (a Admin) DisableFrontend(ctx context.Context, name string) error {
	answer, err := a.do(ctx, "disable frontend "+escape(name))
	if err != nil {
		return err
	}
	if message := strings.TrimSpace(answer); message != "" {
		return &Refusal{Message(message)}
	}
	return nil
}

// parseProxies reads the CSV of `show stat` by the names in its first line.
func parseProxies(answer string) ([]Proxy, error) {
	records, err := csvRecords(strings.TrimPrefix(strings.TrimSpace(answer), "# "))
	if err != nil || len(records) == 0 {
		return nil, fmt.Errorf("show stat: %w", errUnparsed)
	}
	column := map[string]int{}
	for i, name := range records[0] {
		column[name] = i
	}
	field := func(record []string, name string) string {
		if i, ok := column[name]; ok && i < len(record) {
			return record[i]
		}
		return ""
	}
	var proxies []Proxy
	for _, r := range records[1:] {
		kind := field(r, "svname")
		if kind != "FRONTEND" && kind != "BACKEND" {
			continue
		}
		p := Proxy{Name: field(r, "pxname"), Frontend: kind == "FRONTEND"}
		p.Sessions, _ = strconv.Atoi(field(r, "scur"))
		p.AllSessions, _ = strconv.Atoi(field(r, "stot"))
		p.ActiveServers, _ = strconv.Atoi(field(r, "act"))
		proxies = append(proxies, p)
	}
	return proxies, nil
}

func csvRecords(text string) ([][]string, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord = -1
	return r.ReadAll()
}
