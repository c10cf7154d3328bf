package haproxy

import (
	"crypto/sha256"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
)

//go:embed clienthello.lua
var clientHelloReader string

const clientHelloFile = "clienthello.lua"

// Render turns a gateway into a revision. It fails on a model that cannot be
// served, and on one that holds a word which cannot stand in a configuration;
// package resolve lets neither through.
func Render(g model.Gateway) (dataplane.Revision, error) {
	r := &renderer{gateway: g, revision: dataplane.Revision{Files: map[string]string{}}}
	var ports [][]listener
	for _, p := range g.Ports {
		var listeners []listener
		for _, l := range p.Listeners {
			planned, err := plan(l, g.TLS)
			if err != nil {
				return dataplane.Revision{}, err
			}
			listeners = append(listeners, planned)
		}
		ports = append(ports, listeners)
	}

	r.global(slices.ContainsFunc(ports, readsHellos))
	for _, listeners := range ports {
		if handsOn(listeners) {
			r.selecting++
		}
	}
	for i, p := range g.Ports {
		r.port(p.Number, ports[i])
	}
	for _, listeners := range ports {
		for _, l := range listeners {
			r.backend(l)
		}
	}
	r.observe()
	if r.err != nil {
		return dataplane.Revision{}, r.err
	}
	r.revision.Config = r.config.String()
	return r.revision, nil
}

type renderer struct {
	gateway  model.Gateway
	config   strings.Builder
	revision dataplane.Revision
	// selecting is the number of ports that hand connections on inside the pod.
	selecting int
	err       error
}

// line writes one line of the configuration. What an argument says must have
// come through word, path or the like.
func (r *renderer) line(format string, args ...any) {
	fmt.Fprintf(&r.config, format+"\n", args...)
}

func (r *renderer) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// A word cannot be taken for more than one word, nor for an option, a quote, a
// comment, an escape, a variable, a sample expression or a path upwards.
var wordPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/-]*$`)

const maxWord = 1024 // characters; the longest is a policy's list of algorithms

func (r *renderer) word(s string) string {
	if len(s) > maxWord || !wordPattern.MatchString(s) || strings.Contains(s, "..") {
		r.fail(fmt.Errorf("%q cannot stand in a HAProxy configuration", s))
	}
	return s
}

// label is a word that stands in a name of HAProxy's or of a file.
func (r *renderer) label(s string) string {
	if strings.ContainsAny(s, "/:") {
		r.fail(fmt.Errorf("%q cannot stand in a name of a HAProxy configuration", s))
	}
	return r.word(s)
}

func (r *renderer) global(readsHellos bool) {
	r.line("# Gateway %s/%s. Written by qtls-operator.", r.label(r.gateway.Namespace), r.label(r.gateway.Name))
	r.line("global")
	r.line("    default-path config")
	r.providers()
	r.line("    stats socket %s mode 600 level admin expose-fd listeners", AdminSocket)
	r.line("    stats timeout 1h")
	r.line("    hard-stop-after %ds", r.gateway.DrainTimeoutSeconds)
	r.line("    # As many threads as the container may use CPUs.")
	r.line("    thread-hard-limit \"${%s-%d}\"", ThreadsEnvironment, MostThreads)
	r.line("    # Where the node has no IPv6, qtls-agent has set another. HAProxy takes no")
	r.line("    # ${VARIABLE-default} in a line of more than 2048 characters.")
	r.line("    presetenv %s ::", AddressEnvironment)
	r.line("    # HAProxy derives the number of connections from the file descriptors that")
	r.line("    # it may have, of which this is the most that it takes: about 20000")
	r.line("    # connections, of which one that is handed on inside the pod counts two.")
	r.line("    fd-hard-limit %d", MostDescriptors)
	r.line("    # A certificate is pushed through the runtime API in one buffer: a chain")
	r.line("    # and key of ML-DSA have 20 KB. Of a buffer full of a request, what is")
	r.line("    # reserved takes the headers that are set here: a client's ML-DSA")
	r.line("    # certificate has 10 KB in one.")
	r.line("    tune.bufsize 65536")
	r.line("    tune.maxrewrite 16384")
	r.line("    # Sessions are in tickets alone, under keys of the bind's own: a cache by")
	r.line("    # session ID is shared by all binds, and would let a session of one be")
	r.line("    # resumed on another that asks for a client certificate.")
	r.line("    tune.ssl.cachesize 0")
	if t := r.gateway.Tickets; t != nil {
		r.line("    tune.ssl.lifetime %d", t.LifetimeSeconds)
		r.revision.Tickets = &dataplane.Tickets{Ring: t.Ring, RotationSeconds: t.RotationSeconds}
	}
	r.line("    # A certificate is the file that is named, and nothing that lies beside it.")
	r.line("    ssl-load-extra-files none")
	if readsHellos {
		r.line("    tune.lua.bool-sample-conversion normal")
		r.line("    lua-load-per-thread %s", clientHelloFile)
		r.revision.Files[clientHelloFile] = clientHelloReader
	}
	r.line("")
	r.line("# One line for each handshake, for the agent to count. The ring keeps those")
	r.line("# that the agent has not read yet: a socket for datagrams holds ten of them.")
	r.line("ring handshakes")
	r.line("    format raw")
	r.line("    maxlen 512")
	r.line("    size 1048576")
	r.line("    timeout connect 1s")
	r.line("    timeout server 10s")
	r.line("    server agent unix@%s", LogSocket)
	r.line("")
	r.line("log-profile handshakes")
	r.line("    on tcp-req-sess format \"%s\"", handshakeFormat)
	r.line("    on error format \"%s\"", failureFormat)
	for _, step := range []string{"accept", "request", "connect", "response", "close"} {
		r.line("    on %s drop", step)
	}
	r.line("")
	r.defaults("tcp",
		"timeout client 1h",
		"timeout server 1h",
		"timeout client-fin 30s",
		"timeout server-fin 30s")
	r.defaults("http",
		"timeout client 60s",
		"timeout server 60s",
		"timeout http-request 15s",
		"timeout http-keep-alive 60s",
		"timeout tunnel 1h",
		"option http-keep-alive",
		"# A worker that was replaced answers what still comes on a connection",
		"# before it closes that: no request is lost on the way. (close-spread-time",
		"# would undo that: it closes connections that wait, at some moment.)",
		"option idle-close-on-response",
		"# Names of headers have letters, digits and hyphens: many servers take an",
		"# underscore for a hyphen, and with it a forged header for a true one.",
		"option http-restrict-req-hdr-names delete",
		"# Some servers take trailers for headers.",
		"option http-drop-request-trailers",
		"retry-on conn-failure")
	for _, e := range httpErrors {
		r.line("    http-error status %d content-type text/plain string \"%s\\n\"", e.status, e.text)
	}
	r.line("")
}

func (r *renderer) defaults(mode string, lines ...string) {
	r.line("defaults %s", mode)
	r.line("    mode %s", mode)
	r.line("    timeout connect 3s")
	r.line("    # A handshake that stalls ends, whatever the client still sends.")
	r.line("    timeout client-hs %ds", handshakeSeconds)
	r.line("    # A probe that sends nothing is no failed handshake.")
	r.line("    option dontlognull")
	r.line("    option redispatch 1")
	r.line("    retries 3")
	for _, l := range lines {
		r.line("    %s", l)
	}
	if mode == "tcp" {
		r.line("")
	}
}

// httpErrors are what a client reads when the gateway itself answers.
var httpErrors = []struct {
	status int
	text   string
}{
	{400, "Bad Request: the request does not parse."},
	{408, "Request Timeout: the request did not arrive in time."},
	{500, "Internal Server Error: the gateway could not handle the request."},
	{502, "Bad Gateway: the service answered with what is not HTTP."},
	{503, "Service Unavailable: no endpoint of the service takes the connection."},
	{504, "Gateway Timeout: the service did not answer in time."},
}

func (r *renderer) port(number int32, listeners []listener) {
	if direct(listeners) {
		r.terminate(listeners[0], listeners[0].binds[0], everyAddress(number), number, listeners)
		return
	}
	r.selection(number, listeners)
	for _, l := range listeners {
		for _, b := range l.binds {
			r.terminate(l, b, b.abstractSocket()+" accept-proxy", number, listeners)
		}
	}
}

// everyAddress of the pod, with a port: what clients connect to. The variable
// stands alone in its quotes: agents of former versions, too, read the port.
func everyAddress(port int32) string {
	return fmt.Sprintf(`"${%s}":%d v4v6`, AddressEnvironment, port)
}

// portPattern also finds the ports of revisions that former versions published.
var portPattern = regexp.MustCompile(`(?m)^    bind (?:"\$\{` + AddressEnvironment + `\}"|::):([0-9]+) v4v6`)

// Ports are those that clients connect to under a revision, in ascending order.
func Ports(r dataplane.Revision) []int32 {
	var ports []int32
	for _, bind := range portPattern.FindAllStringSubmatch(r.Config, -1) {
		if port, err := strconv.ParseInt(bind[1], 10, 32); err == nil {
			ports = append(ports, int32(port))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

func backendName(l listener) string { return backendPrefix + l.Name }

// backend is what the agent renders, with the endpoints of the day.
func (r *renderer) backend(l listener) {
	b := dataplane.Backend{Name: backendName(l), HTTP: isHTTP(l)}
	for _, m := range l.Backends {
		group := dataplane.ServerGroup{Name: r.word(m.Group), Weight: m.Weight}
		if m.Weight < 0 || m.Weight > 256 {
			r.fail(fmt.Errorf("backend %q has weight %d; a weight is 0 to 256", m.Group, m.Weight))
		}
		if m.TLS != nil {
			group.TLS = &dataplane.ServerTLS{
				Hostname: r.label(string(m.TLS.Hostname)),
				CAFile:   r.authorities(m.TLS.CAs),
			}
		}
		b.Groups = append(b.Groups, group)
	}
	r.revision.Backends = append(r.revision.Backends, b)
}

// AuthoritiesFolder has a revision's files of CA certificates.
const AuthoritiesFolder = "ca/"

// authorities writes a file of CA certificates, of which it takes the
// certificates and nothing between them, and returns its name. That is of what is in
// it: a bundle that many listeners and backends name is there once.
func (r *renderer) authorities(bundle string) string {
	var out strings.Builder
	for rest := []byte(bundle); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" {
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // a strings.Builder does not fail
		}
	}
	if out.Len() == 0 {
		r.fail(errors.New("a file of authorities would hold no certificate"))
	}
	digest := sha256.Sum256([]byte(out.String()))
	file := fmt.Sprintf(AuthoritiesFolder+"%x.pem", digest[:16])
	r.revision.Files[file] = out.String()
	return file
}

func (r *renderer) observe() {
	o := r.gateway.Observe
	if o == nil {
		return
	}
	r.revision.Observe = &dataplane.Acceptable{Versions: o.Versions, Groups: o.Groups, Suites: o.Suites}
	for _, a := range o.Algorithms {
		r.revision.Observe.Algorithms = append(r.revision.Observe.Algorithms, string(a))
	}
}
