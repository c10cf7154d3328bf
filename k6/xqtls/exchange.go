package xqtls

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/grafana/sobek"
	"go.k6.io/k6/v2/js/common"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/openssl"
)

// request is an HTTP request of a script.
type request struct {
	path string
	// size of its body; 0 is a GET.
	size int
	// status that is expected; 0 is any 2xx.
	status int
}

const (
	leastSize, mostSize = 1 << 10, 1 << 20
	takesSize           = "give bytes from 1024 to 1048576"
	takesPath           = "give one that begins with /, and is escaped"
	takesStatus         = "give an HTTP status, or leave it out"
)

// body is what transfers send.
var body = []byte(strings.Repeat("0123456789abcdef", mostSize/16))

// atMost refuses more arguments than a call takes. One that is nothing is as good as none: our scripts pass a load's request on,
// and handshakes have none.
func atMost(n int, arguments []sobek.Value) error {
	for i, a := range arguments {
		if i >= n && !common.IsNullish(a) {
			return fmt.Errorf("argument %d is more than it takes: leave it out", i+1)
		}
	}
	return nil
}

// parseRequest reads the arguments of a call that takes one object.
func parseRequest(arguments []sobek.Value, known ...string) (request, error) {
	r := request{path: "/"}
	if err := atMost(1, arguments); err != nil {
		return r, err
	}
	if len(arguments) == 0 || sobek.IsUndefined(arguments[0]) {
		return r, nil
	}
	object, err := exportObject(arguments[0])
	if err != nil {
		return r, err
	}
	if err := unknownKey(object, known...); err != nil {
		return r, err
	}
	if v, given := object["path"]; given {
		s, ok := v.(string)
		if r.path = s; !ok {
			return r, fmt.Errorf("path %q: %s", fmt.Sprint(v), takesPath)
		}
	}
	integer := func(name string, least, most int64, takes string, at *int) error {
		v, given := object[name]
		n, ok := v.(int64)
		if given && (!ok || n < least || n > most) {
			return fmt.Errorf("%s %v: %s", name, v, takes)
		}
		*at = int(n)
		return nil
	}
	return r, errors.Join(
		r.validate(),
		integer("size", leastSize, mostSize, takesSize, &r.size),
		integer("status", 100, 599, takesStatus, &r.status),
	)
}

// validate says what is wrong with a path or a status.
func (r request) validate() error {
	if !strings.HasPrefix(r.path, "/") || strings.ContainsFunc(r.path, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return fmt.Errorf("path %q: %s", r.path, takesPath)
	}
	if r.status != 0 && (r.status < 100 || r.status > 599) {
		return fmt.Errorf("status %d: %s", r.status, takesStatus)
	}
	return nil
}

// exchange is what was seen of one.
type exchange struct {
	time           time.Duration // 0: there was none
	status         int
	sent, received int64
}

// unexpected is a response that is not what was asked for.
type unexpected struct{ reason string }

func (u *unexpected) Error() string { return u.reason }

// run sends a request and reads the response to its end.
func (x *exchange) run(k *openssl.Connection, authority string, r request) error {
	begin := time.Now()
	counted := &counter{k: k, x: x}
	method := http.MethodGet
	head := ""
	if r.size > 0 {
		method = http.MethodPost
		head = "Content-Type: application/octet-stream\r\nContent-Length: " + strconv.Itoa(r.size) + "\r\n"
	}
	message := append([]byte(method+" "+r.path+" HTTP/1.1\r\nHost: "+authority+"\r\nUser-Agent: qtls-k6\r\nConnection: close\r\n"+head+"\r\n"), body[:r.size]...)
	if _, err := counted.Write(message); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(counted, 16<<10), &http.Request{Method: method})
	if err == nil {
		defer response.Body.Close()
		x.status = response.StatusCode
		_, err = io.Copy(io.Discard, response.Body)
	}
	x.time = time.Since(begin)
	var failed *openssl.Failed
	switch {
	case errors.As(err, &failed):
		return failed
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return &openssl.Failed{Class: shard.Reset, Message: "the server closed the connection before the response was whole"}
	case err != nil:
		return &unexpected{"not an HTTP response: " + err.Error()}
	case r.status != 0 && x.status != r.status, r.status == 0 && x.status/100 != 2:
		return &unexpected{fmt.Sprintf("status %d", x.status)}
	}
	return nil
}

// counter counts application data.
type counter struct {
	k *openssl.Connection
	x *exchange
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.k.Write(b)
	c.x.sent += int64(n)
	return n, err
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.k.Read(b)
	c.x.received += int64(n)
	return n, err
}

// classify says which failure an error on a connection is.
func classify(err error) (shard.Failure, string) {
	var failed *openssl.Failed
	var answer *unexpected
	switch {
	case errors.As(err, &failed):
		return failed.Class, failed.Message
	case errors.As(err, &answer):
		return shard.HTTP, answer.reason
	}
	return shard.Other, err.Error()
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
