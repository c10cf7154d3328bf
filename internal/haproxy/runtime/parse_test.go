package runtime

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The answers here are those of HAProxy 3.2.26.

const processesAfterAFailedReload = `#<PID>          <type>          <reloads>       <uptime>        <version>      
1               master          2 [failed: 1]   0d00h00m23s     3.2.26-1       
# workers
# old workers
11              worker          1               0d00h00m16s     3.2.26-1       

`

func TestProcesses(t *testing.T) {
	got, err := parseProcesses(processesAfterAFailedReload)
	if err != nil {
		t.Fatal(err)
	}
	want := Processes{PID: 1, Reloads: 2, Failed: 1, Workers: []Worker{{PID: 11, Old: true}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := parseProcesses("Unknown command\n"); !errors.Is(err, errUnparsed) {
		t.Errorf("an answer without a master: %v", err)
	}
}

const refusedReload = `Success=0
--
[NOTICE]   (1) : Initializing new worker (14)
[NOTICE]   (14) : haproxy version is 3.2.26-1
[NOTICE]   (14) : path to executable is /usr/sbin/haproxy
[ALERT]    (14) : config : parsing [/run/qtls/current/haproxy.cfg:15] : unknown keyword 'frob' in 'frontend' section
[ALERT]    (14) : config : Error(s) found in configuration file : /run/qtls/current/haproxy.cfg
[ALERT]    (14) : config : Fatal errors found in configuration.
[WARNING]  (1) : Failed to load worker (14) exited with code 1 (Exit)

`

func TestReload(t *testing.T) {
	if err := parseReload("Success=1\n--\n[NOTICE]   (1) : Loading success.\n"); err != nil {
		t.Error(err)
	}
	var refused *Refusal
	if err := parseReload(refusedReload); !errors.As(err, &refused) {
		t.Fatalf("a refused reload: %v", err)
	}
	if want := "parsing [haproxy.cfg:15] : unknown keyword 'frob' in 'frontend' section"; refused.Message != want {
		t.Errorf("message %q, want %q", refused.Message, want)
	}
	if err := parseReload(""); !errors.Is(err, errUnparsed) || errors.As(err, &refused) {
		t.Errorf("no answer is not a refusal: %v", err)
	}
}

func TestMessage(t *testing.T) {
	for _, c := range []struct{ name, output, want string }{
		{"alerts alone, without their prefix and without sums",
			"[WARNING]  (7) : config : a warning\n[ALERT]    (7) : config : one\n[ALERT]    (7) : two\n[ALERT]    (7) : config : Fatal errors found in configuration.\n",
			"one\ntwo"},
		{"the file, not where it lies", "[ALERT]    (7) : config : parsing [/run/qtls/rev/0123456789abcdef-2/backends.cfg:3] : x\n", "parsing [backends.cfg:3] : x"},
		{"no alerts", "unable to load certificate from file 'certs/a.pem': bad end line.\nCan't load the payload\n", "unable to load certificate from file 'certs/a.pem': bad end line.\nCan't load the payload"},
		{"nothing at all", "\n \n", "HAProxy gave no reason"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Message(c.output); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	long := Message("[ALERT]    (7) : " + strings.Repeat("é", 2000))
	if len(long) > maxMessage || !strings.HasSuffix(long, "[...]") {
		t.Errorf("a long message has %d bytes and ends in %q", len(long), long[len(long)-10:])
	}
}

const showInfo = `Name: HAProxy
Version: 3.2.26-1
Pid: 7
Uptime: 0d 0h00m01s
Start_time_sec: 1795255949
Maxconn: 20000
CurrConns: 3
Stopping: 1
`

func TestInfo(t *testing.T) {
	got, err := parseInfo(showInfo)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Info{Version: "3.2.26-1", PID: 7, Started: 1795255949, Stopping: true, Connections: 3, MaxConnections: 20000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := parseInfo("Permission denied\n"); !errors.Is(err, errUnparsed) {
		t.Errorf("no information: %v", err)
	}
}

const showCertificate = `Filename: certs/one.pem
Crt filename: certs/one.pem
Status: Used
Serial: 03883401F9781EE7E
notBefore: Nov  1 08:57:42 2026 GMT
notAfter: Nov  2 09:57:42 2026 GMT
Subject Alternative Name: DNS:x.example
`

func TestCertificate(t *testing.T) {
	got, err := parseCertificate(showCertificate)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Certificate{SerialNumber: "3883401f9781ee7e", NotAfter: time.Date(2026, 11, 2, 9, 57, 42, 0, time.UTC)}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := parseCertificate("Can't display the certificate: Not found or the certificate is a bundle!\n\n"); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("no such file: %v", err)
	}
	for _, answer := range []string{"", "Serial: xyz\n", "Serial: 1\nnotAfter: soon\n"} {
		if _, err := parseCertificate(answer); !errors.Is(err, errUnparsed) {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

const showServersState = `1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr srv_agent_addr srv_agent_port
3 b 1 g1-1 127.0.0.5 2 4 1 1 0 1 0 0 8 0 0 0 - 99 - 0 0 - - 0
3 b 2 g1-2 ::1 0 5 1 1 16 1 0 0 8 0 0 0 - 99 - 0 0 - - 0
3 b 3 g1-3 127.0.0.1 2 12 1 1 16 1 0 0 8 0 0 0 - 1 - 0 0 - - 0
4 c 1 bind - 2 0 1 1 16 1 0 0 8 0 0 0 - 0 - 0 0 - - 0
`

func TestServers(t *testing.T) {
	got, err := parseServers(showServersState)
	if err != nil {
		t.Fatal(err)
	}
	want := []Server{
		{Backend: "b", Name: "g1-1", Address: netip.MustParseAddr("127.0.0.5"), Port: 99},
		{Backend: "b", Name: "g1-2", Address: netip.MustParseAddr("::1"), Port: 99, Disabled: true},
		{Backend: "b", Name: "g1-3", Address: netip.MustParseAddr("127.0.0.1"), Port: 1, Disabled: true}, // drains
		{Backend: "c", Name: "bind"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestServerAnswers(t *testing.T) {
	for _, good := range []string{"\n\n\n", "nothing changed\n\n",
		"\nIP changed from '127.0.0.1' to '127.0.0.5', port changed from '1' to '99' by 'stats socket command'\n\n",
		"no need to change the addr, port changed from '99' to '98' by 'stats socket command'\n"} {
		if err := serverAnswer(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"No such server.\n", "Invalid addr 'nonsense'\n\n", "No such backend.\n"} {
		var refused *Refusal
		if err := serverAnswer(bad); !errors.As(err, &refused) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestProxies(t *testing.T) {
	got, err := parseProxies("# pxname,svname,qcur,scur,act,desc,\nlistener.web.classical,FRONTEND,,4,,,\nbackend.web,g1-1,0,1,1,,\nbackend.web,BACKEND,0,2,3,\"a, b\",\n\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Proxy{{Name: "listener.web.classical", Frontend: true, Sessions: 4}, {Name: "backend.web", Sessions: 2, ActiveServers: 3}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := parseProxies(""); !errors.Is(err, errUnparsed) {
		t.Errorf("no answer: %v", err)
	}
}

func TestAPayloadHasNoEmptyLine(t *testing.T) {
	if got, want := payload([]byte("a\r\n\r\n \nb")), "a\nb\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// FuzzAnswers holds every parser to an error or a value, whatever a socket
// says.
func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{processesAfterAFailedReload, refusedReload, showInfo, showCertificate, showServersState,
		"Success=1\n", "# pxname,svname\na,FRONTEND\n", "\"", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		if p, err := parseProcesses(answer); err == nil && p.PID <= 0 {
			t.Errorf("a master with PID %d", p.PID)
		}
		if i, err := parseInfo(answer); err == nil && (i.PID <= 0 || i.Version == "") {
			t.Errorf("a worker without PID or version: %+v", i)
		}
		if c, err := parseCertificate(answer); err == nil && (c.SerialNumber == "" || c.NotAfter.IsZero()) {
			t.Errorf("a certificate without serial number or end: %+v", c)
		}
		if servers, err := parseServers(answer); err == nil {
			for _, s := range servers {
				if s.Backend == "" || s.Name == "" {
					t.Errorf("a server without a name: %+v", s)
				}
			}
		}
		if message := Message(answer); message == "" || len(message) > maxMessage {
			t.Errorf("a message of %d bytes", len(message))
		}
		_ = parseReload(answer)
		_, _ = parseProxies(answer)
		_ = serverAnswer(answer)
	})
}
