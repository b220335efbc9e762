package delayserver

// The client against a real server, which each test starts itself.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds a test that hangs. Nothing here measures time.
const patience = time.Minute

type testServer struct {
	t       *testing.T
	command *exec.Cmd
	address string
	log     *bytes.Buffer
	copied  chan struct{}
}

var readyLine = regexp.MustCompile(`ready on (127\.0\.0\.1:\d+)`)

func startServer(t *testing.T, folder string, settings ...string) *testServer {
	t.Helper()
	program := os.Getenv("DELAYSERVER")
	if program == "" {
		t.Skip("DELAYSERVER, the path of the command, is not set")
	}
	arguments := []string{"serve", "--data-dir", folder, "--port", "0", "--http-port", "0"}
	for _, setting := range settings {
		arguments = append(arguments, "--set", setting)
	}
	server := &testServer{t: t, command: exec.Command(program, arguments...), log: &bytes.Buffer{}, copied: make(chan struct{})}
	server.command.Stderr = server.log
	output, err := server.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.kill)
	lines := bufio.NewReader(output)
	for server.address == "" {
		line, err := lines.ReadString('\n')
		if found := readyLine.FindStringSubmatch(line); found != nil {
			server.address = found[1]
		} else if err != nil {
			server.kill()
			t.Fatalf("the server did not start: %v\n%s", err, server.log)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		close(server.copied)
	}()
	return server
}

func (s *testServer) kill() {
	if s.command.ProcessState == nil {
		_ = s.command.Process.Kill()
		if s.address != "" {
			<-s.copied
		}
		_ = s.command.Wait()
	}
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, server *testServer) *Client {
	t.Helper()
	client, err := Dial(patient(t), server.address, Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func must[T any](result T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
}

func TestAgainstAServer(t *testing.T) {
	server := startServer(t, t.TempDir())
	client := dial(t, server)
	for name, check := range map[string]func(*testing.T, *testServer, *Client){
		"hello, ping, status and route tell of the server":   checkWatch,
		"a message is sent, pulled and acked":                checkRoundTrip,
		"a delay is never early":                             checkDelay,
		"a message that is sent twice is delivered once":     checkRepeat,
		"a thousand messages go in columns":                  checkColumns,
		"columns of several subjects name refused rows":      checkRejectedRows,
		"cancel, lookup and reschedule":                      checkMessages,
		"a reply without rows is no error":                   checkNothing,
		"a nack brings a message again":                      checkNack,
		"errors have their names":                            checkErrors,
		"the end of a context ends a long poll":              checkLongPoll,
		"goroutines share a connection":                      checkGoroutines,
		"the server answers bad frames as the vectors say":   checkBadFrames,
		"an ack inside a pull counts, and groups tell of it": checkGroups,
	} {
		check := check
		t.Run(name, func(t *testing.T) { check(t, server, client) })
	}
}

func checkWatch(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	hello := client.Server()
	if len(hello.ID) != 12 || hello.Role != "server" || hello.Version != 1 || hello.Limits.BatchMessagesMax < 1 {
		t.Errorf("%+v", hello)
	}
	if clock := must(client.Ping(ctx))(t); clock.Year() < 2020 {
		t.Error(clock)
	}
	status := must(client.Status(ctx))(t)
	if !status.Ready || status.ServerID != hello.ID || status.All["accepted"] == nil {
		t.Errorf("%+v", status)
	}
	group, nodes, err := client.Route(ctx, "orders")
	if err != nil || group != "default" || len(nodes) != 1 {
		t.Error(group, nodes, err)
	}
}

// take pulls until count messages are there, and acks them.
func take(t *testing.T, client *Client, subject, group string, count int) []Received {
	t.Helper()
	ctx := patient(t)
	var all []Received
	for len(all) < count {
		rows := must(client.Pull(ctx, Pull{Subject: subject, Group: group, Max: count, Wait: 10 * time.Second}))(t)
		var deliveries []int64
		for _, row := range rows {
			deliveries = append(deliveries, row.Delivery)
		}
		if acked := must(client.Ack(ctx, subject, group, deliveries...))(t); acked != (Acked{Acked: len(rows)}) {
			t.Fatalf("%+v for %d", acked, len(rows))
		}
		all = append(all, rows...)
	}
	return all
}

func checkRoundTrip(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	message := &Message{Subject: "round", Body: []byte{0, 255}, Properties: map[string]string{"trace": "7"}}
	receipt := must(client.Send(ctx, message))(t)
	row := take(t, client, "round", "billing", 1)[0]
	serverID, dueMs, sequence, err := receipt.Parts()
	if err != nil || row.ServerID != serverID || row.DueMs != dueMs || row.Sequence != sequence || row.ID != message.ID ||
		!bytes.Equal(row.Body, message.Body) || row.Properties["trace"] != "7" || row.Attempt != 1 {
		t.Errorf("%+v of %s", row, receipt)
	}
	if again := must(client.Ack(ctx, "round", "billing", row.Delivery))(t); again != (Acked{Unknown: 1}) {
		t.Errorf("%+v", again)
	}
}

func checkDelay(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	before := must(client.Ping(ctx))(t)
	message := &Message{Subject: "delay", Body: []byte("x"), Delay: 300 * time.Millisecond}
	must(client.Send(ctx, message))(t)
	// The machine's clock may be slewed between the two readings; what may never be is an early hand-over.
	const slew = 100 * time.Millisecond
	if message.Delay != 0 || message.Due.Before(before.Add(300*time.Millisecond-slew)) {
		t.Errorf("%+v is before %v", message, before)
	}
	row := take(t, client, "delay", "billing", 1)[0]
	if row.DispatchedUs < message.Due.UnixMicro() || row.DueMs != message.Due.UnixMilli() {
		t.Errorf("%+v", row)
	}
}

func checkRepeat(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	message := &Message{Subject: "repeat", Body: []byte("x"), Delay: 50 * time.Millisecond}
	first := must(client.Send(ctx, message))(t)
	second := must(dial(t, server).Send(ctx, message))(t)
	take(t, client, "repeat", "billing", 1)
	if first == second || first.Due() != second.Due() {
		t.Error(first, second)
	}
	state := must(client.Lookup(ctx, second))(t)[0]
	if state.Outcome != Deduplicated || state.Original != first {
		t.Errorf("%+v", state)
	}
}

func checkColumns(t *testing.T, server *testServer, client *Client) {
	const rows = 1000
	batch := &Batch{Subject: "columns"}
	for row := 0; row < rows; row++ {
		batch.Bodies = append(batch.Bodies, []byte(strings.Repeat("b", row%7)+fmt.Sprint(row)))
		batch.Delays = append(batch.Delays, time.Duration(row%50)*time.Millisecond)
		batch.Properties = append(batch.Properties, map[string]string{"row": fmt.Sprint(row)})
	}
	batch.Properties[0] = nil
	sent := must(client.SendColumns(patient(t), batch))(t)
	if len(sent.Receipts) != rows || len(sent.Rejected) != 0 {
		t.Fatal(len(sent.Receipts), sent.Rejected)
	}
	wanted := map[Receipt]int{}
	for row, receipt := range sent.Receipts {
		wanted[receipt] = row
	}
	for _, got := range take(t, client, "columns", "billing", rows) {
		row, ok := wanted[NewReceipt(got.ServerID, got.DueMs, got.Sequence)]
		if !ok || got.ID != batch.IDs[row] || !bytes.Equal(got.Body, batch.Bodies[row]) || got.Properties["row"] != batch.Properties[row]["row"] {
			t.Fatalf("%+v is not row %d", got, row)
		}
		delete(wanted, NewReceipt(got.ServerID, got.DueMs, got.Sequence))
	}
	if len(wanted) > 0 {
		t.Error(wanted)
	}
}

func checkRejectedRows(t *testing.T, server *testServer, client *Client) {
	batch := &Batch{Subjects: []string{"left", "", "right"}, Bodies: [][]byte{[]byte("a"), []byte("b"), nil}}
	sent := must(client.SendColumns(patient(t), batch))(t)
	if len(sent.Rejected) != 1 || sent.Rejected[0].Index != 1 || sent.Rejected[0].Err.Name != SubjectInvalid || sent.Receipts[1] != "" {
		t.Fatalf("%+v", sent)
	}
	for row, subject := range map[int]string{0: "left", 2: "right"} {
		got := take(t, client, subject, "billing", 1)[0]
		if NewReceipt(got.ServerID, got.DueMs, got.Sequence) != sent.Receipts[row] || !bytes.Equal(got.Body, batch.Bodies[row]) {
			t.Errorf("%+v", got)
		}
	}
}

func checkMessages(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	message := &Message{Subject: "later", Body: []byte("x"), Delay: time.Hour}
	receipt := must(client.Send(ctx, message))(t)
	if state := must(client.Lookup(ctx, receipt))(t)[0]; state.Outcome != Pending || state.Subject != "later" {
		t.Errorf("%+v", state)
	}
	moved := must(client.Reschedule(ctx, Move{Receipt: receipt, Delay: 2 * time.Hour, Body: []byte("y")}, Move{Receipt: "nonsense"}))(t)
	if moved[0].Outcome != Cancelled || moved[0].NewReceipt.Due().Before(message.Due.Add(59*time.Minute)) || moved[1].Err.Name != ReceiptInvalid {
		t.Errorf("%+v", moved)
	}
	if state := must(client.Lookup(ctx, receipt))(t)[0]; state.Outcome != Cancelled || state.RescheduledTo != moved[0].NewReceipt {
		t.Errorf("%+v", state)
	}
	name := Name{"later", message.ID, moved[0].NewReceipt.Due()}
	if state := must(client.LookupNamed(ctx, name))(t)[0]; state.Receipt != moved[0].NewReceipt || state.Outcome != Pending {
		t.Errorf("%+v", state)
	}
	now := must(client.Reschedule(ctx, Move{Name: name}))(t)[0]
	if row := take(t, client, "later", "billing", 1)[0]; string(row.Body) != "y" || row.ID != message.ID || now.Outcome != Cancelled {
		t.Errorf("%+v %+v", row, now)
	}
	other := must(client.Send(ctx, &Message{Subject: "later", Delay: time.Hour, ID: "o"}))(t)
	states := must(client.Cancel(ctx, other, other, "nonsense", NewReceipt("ffffffffffff", 0, 1), NewReceipt(client.Server().ID, other.Due().UnixMilli(), 1<<40)))(t)
	for row, want := range []string{Cancelled, AlreadyCancelled, ReceiptInvalid, ForeignReceipt, Unknown} {
		got := states[row].Outcome
		if states[row].Err != nil {
			got = states[row].Err.Name
		}
		if got != want {
			t.Errorf("row %d: %s, want %s", row, got, want)
		}
	}
	if state := must(client.CancelNamed(ctx, Name{"later", "o", other.Due()}))(t)[0]; state.Outcome != AlreadyCancelled {
		t.Errorf("%+v", state)
	}
}

func checkNothing(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	if rows := must(client.Pull(ctx, Pull{Subject: "nothing", Group: "billing"}))(t); len(rows) != 0 {
		t.Error(rows)
	}
	refused := &Batch{Subject: "nothing", Bodies: [][]byte{nil}, Due: []time.Time{time.UnixMilli(1)}}
	if sent := must(client.SendColumns(ctx, refused))(t); len(sent.Rejected) != 1 || sent.Rejected[0].Err.Name != TooOld || sent.Receipts[0] != "" {
		t.Errorf("%+v", sent)
	}
	if acked := must(client.Ack(ctx, "nothing", "billing"))(t); acked != (Acked{}) {
		t.Errorf("%+v", acked)
	}
}

func checkNack(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	must(client.Send(ctx, &Message{Subject: "nack", Body: []byte("x")}))(t)
	pull := Pull{Subject: "nack", Group: "billing", Wait: 20 * time.Second}
	first := must(client.Pull(ctx, pull))(t)[0]
	if nacked := must(client.Nack(ctx, "nack", "billing", 0, first.Delivery))(t); nacked != (Nacked{Nacked: 1}) {
		t.Errorf("%+v", nacked)
	}
	second := must(client.Pull(ctx, pull))(t)[0]
	if second.ID != first.ID || second.Attempt != 2 {
		t.Errorf("%+v", second)
	}
	if nacked := must(client.Nack(ctx, "nack", "billing", ServerPause, second.Delivery))(t); nacked.Nacked != 1 {
		t.Errorf("%+v", nacked)
	}
	if third := take(t, client, "nack", "billing", 1)[0]; third.Attempt != 3 {
		t.Errorf("%+v", third)
	}
}

func checkErrors(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	send := func(message Message) error {
		if message.Subject == "" {
			message.Subject = "errors"
		}
		_, err := client.Send(ctx, &message)
		return err
	}
	long := strings.Repeat("x", 300)
	limits := client.Server().Limits
	_, tooMany := client.SendColumns(ctx, &Batch{Subject: "errors", Bodies: make([][]byte, limits.BatchMessagesMax+1)})
	_, badGroup := client.Pull(ctx, Pull{Subject: "errors", Group: "\n"})
	_, badWait := client.Pull(ctx, Pull{Subject: "errors", Group: "g", Wait: time.Hour})
	_, noRoute := client.Cancel(ctx)
	for _, row := range []struct {
		err  error
		name string
	}{
		{send(Message{Due: time.UnixMilli(1)}), TooOld},
		{send(Message{Delay: 3 * 366 * 24 * time.Hour}), TooFar},
		{send(Message{Subject: long}), SubjectInvalid},
		{send(Message{ID: long}), MessageIDInvalid},
		{send(Message{ID: DerivedID(client.Server().ID, 1)}), MessageIDInvalid},
		{send(Message{Body: make([]byte, limits.BodyBytesMax+1)}), MessageTooLarge},
		{send(Message{Properties: map[string]string{"x": strings.Repeat("x", int(limits.PropertiesBytesMax))}}), PropertiesInvalid},
		{send(Message{Body: make([]byte, limits.FrameBytesMax)}), FrameTooLarge}, // said by the client: the server would end the connection
		{tooMany, BatchTooLarge},
		{badGroup, SubjectInvalid},
		{badWait, InvalidArgument},
		{noRoute, InvalidArgument},
		{client.call(ctx, "nonsense", map[string]any{}, &struct{}{}), UnknownOperation},
	} {
		var named *Error
		if !errors.As(row.err, &named) || named.Name != row.name || named.Message == "" || named.Again() || !errors.Is(row.err, &Error{Name: row.name}) {
			t.Errorf("%v, want %s", row.err, row.name)
		}
	}
	if client.Err() != nil {
		t.Error(client.Err())
	}
}

func checkLongPoll(t *testing.T, server *testServer, client *Client) {
	waiting, cancel := context.WithCancel(patient(t))
	ended := make(chan error)
	go func() {
		_, err := client.Pull(waiting, Pull{Subject: "poll", Group: "billing", Wait: time.Minute})
		ended <- err
	}()
	// The pull is open at the client before it is cancelled, so that the wait really is at the server.
	for len(client.pulls) == 0 {
		time.Sleep(time.Millisecond)
	}
	must(client.Ping(patient(t)))(t)
	cancel()
	err := <-ended
	var without *NoReplyError
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrConnectionLost) || !errors.As(err, &without) {
		t.Error(err)
	}
	for len(client.pulls) > 0 { // the place is free when the server has answered the pull, a minute early
		time.Sleep(time.Millisecond)
	}
	must(client.Send(patient(t), &Message{Subject: "poll", Body: []byte("x")}))(t)
	if row := take(t, client, "poll", "billing", 1)[0]; row.Attempt != 1 {
		t.Errorf("the pull that was given up took the message: %+v", row)
	}
}

func checkGoroutines(t *testing.T, server *testServer, client *Client) {
	const goroutines, each = 20, 20
	ctx := patient(t)
	var work sync.WaitGroup
	for number := 0; number < goroutines; number++ {
		work.Add(1)
		go func(number int) {
			defer work.Done()
			subject := fmt.Sprintf("shared-%d", number)
			for row := 0; row < each; row++ {
				body := fmt.Sprintf("%d of %d", row, number)
				if _, err := client.Send(ctx, &Message{Subject: subject, Body: []byte(body)}); err != nil {
					t.Error(err)
					return
				}
				rows, err := client.Pull(ctx, Pull{Subject: subject, Group: "billing", Wait: 20 * time.Second})
				if err != nil || len(rows) != 1 || string(rows[0].Body) != body {
					t.Error(rows, err)
					return
				}
				if _, err := client.Ack(ctx, subject, "billing", rows[0].Delivery); err != nil {
					t.Error(err)
					return
				}
			}
		}(number)
	}
	work.Wait()
}

func checkGroups(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	for row := 0; row < 2; row++ {
		must(client.Send(ctx, &Message{Subject: "grouped", Body: []byte("x")}))(t)
	}
	first := must(client.Pull(ctx, Pull{Subject: "grouped", Group: "billing", Wait: 20 * time.Second}))(t)[0]
	second := must(client.Pull(ctx, Pull{Subject: "grouped", Group: "billing", Wait: 20 * time.Second, Ack: []int64{first.Delivery}}))(t)[0]
	if acked := must(client.Ack(ctx, "grouped", "billing", first.Delivery, second.Delivery))(t); acked != (Acked{Acked: 1, Unknown: 1}) {
		t.Errorf("%+v", acked)
	}
	groups := must(client.Groups(ctx, "grouped"))(t)
	if len(groups) != 1 || groups[0].Group != "billing" || groups[0].Lag != 0 || groups[0].OldestMs != nil {
		t.Errorf("%+v", groups)
	}
	if all := must(client.Groups(ctx, ""))(t); len(all) < 1 {
		t.Errorf("%+v", all)
	}
}

func checkBadFrames(t *testing.T, server *testServer, client *Client) {
	for _, vector := range readVectors(t).BadFrames {
		conn, err := net.Dial("tcp", server.address)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(vector.bytes(t)); err != nil {
			t.Fatal(err)
		}
		header := make([]byte, 4)
		if _, err := io.ReadFull(conn, header); err != nil {
			t.Fatal(vector.Name, err)
		}
		payload := make([]byte, binary.LittleEndian.Uint32(header))
		if _, err := io.ReadFull(conn, payload); err != nil {
			t.Fatal(vector.Name, err)
		}
		answer, err := decodeReply(payload)
		if err != nil || answer.id != vector.ID || answer.err == nil || answer.err.Name != vector.Error {
			t.Errorf("%s: %+v, %v", vector.Name, answer, err)
		}
		if vector.Closes {
			if _, err := conn.Read(header); err == nil {
				t.Errorf("%s: the connection goes on", vector.Name)
			}
		} else {
			frame, _ := encodeRequest(8, "ping", map[string]any{})
			_, _ = conn.Write(frame)
			if _, err := io.ReadFull(conn, header); err != nil {
				t.Errorf("%s: the connection ends: %v", vector.Name, err)
			}
		}
		conn.Close()
	}
}

func TestAServerThatIsKilledIsALostConnectionAndItsMessagesSurvive(t *testing.T) {
	folder := t.TempDir()
	server := startServer(t, folder)
	client := dial(t, server)
	ctx := patient(t)
	message := &Message{Subject: "killed", Body: []byte("x"), Delay: time.Hour}
	receipt := must(client.Send(ctx, message))(t)
	ended := make(chan error)
	go func() {
		_, err := client.Pull(ctx, Pull{Subject: "killed", Group: "billing", Wait: time.Minute})
		ended <- err
	}()
	for len(client.pulls) == 0 {
		time.Sleep(time.Millisecond)
	}
	must(client.Ping(ctx))(t) // the pull is written before the ping, or waits for the writer; both end below
	server.kill()
	err := <-ended
	var without *NoReplyError
	if !errors.As(err, &without) || !errors.Is(err, ErrConnectionLost) {
		t.Fatal(err)
	}
	<-client.Lost()
	_, err = client.Send(ctx, message)
	if !errors.As(err, &without) || without.MaybeDone || !errors.Is(err, ErrConnectionLost) {
		t.Fatal(err)
	}
	again := dial(t, startServer(t, folder))
	if state := must(again.Lookup(ctx, receipt))(t)[0]; state.Outcome != Pending {
		t.Errorf("%+v", state)
	}
	repeated := must(again.Send(ctx, message))(t)
	if repeated.Due() != receipt.Due() {
		t.Error(receipt, repeated)
	}
}

func TestTheExampleSendsAndReceives(t *testing.T) {
	server := startServer(t, t.TempDir())
	program := t.TempDir() + "/example"
	if text, err := exec.Command("go", "build", "-o", program, "./example").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	text, err := exec.CommandContext(patient(t), program, server.address).CombinedOutput()
	if err != nil || !strings.Contains(string(text), `received "hi"`) {
		t.Fatalf("%v\n%s", err, text)
	}
}

// certificate writes a self-signed certificate for 127.0.0.1, with its key, and returns the file and who trusts it.
func certificate(t *testing.T) (string, *tls.Config) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	made := must(x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key))(t)
	secret := must(x509.MarshalPKCS8PrivateKey(key))(t)
	blocks := append(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...,
	)
	file := filepath.Join(t.TempDir(), "server.pem")
	if err := os.WriteFile(file, blocks, 0o600); err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(blocks)
	return file, &tls.Config{RootCAs: trusted}
}

func TestTokensAndTLS(t *testing.T) {
	program := os.Getenv("DELAYSERVER")
	if program == "" {
		t.Skip("DELAYSERVER, the path of the command, is not set")
	}
	folder, ctx := t.TempDir(), patient(t)
	file, config := certificate(t)
	server := startServer(t, folder, "tls.certificate="+file, "tls.key="+file)
	create := exec.Command(program, "token", "create", "--role", "send", "--server", server.address, "--tls-ca", file, "--json")
	output, err := create.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, err.(*exec.ExitError).Stderr)
	}
	var token struct{ Token string }
	if err := json.Unmarshal(output, &token); err != nil || token.Token == "" {
		t.Fatal(err, string(output))
	}
	if _, err := Dial(ctx, server.address, Options{TLS: &tls.Config{RootCAs: x509.NewCertPool()}}); err == nil {
		t.Error("a certificate of nobody we trust was taken")
	}
	stranger := must(Dial(ctx, server.address, Options{TLS: config}))(t)
	defer stranger.Close()
	if _, err := stranger.Send(ctx, &Message{Subject: "s"}); !errors.Is(err, &Error{Name: "unauthenticated"}) {
		t.Error(err)
	}
	if _, err := Dial(ctx, server.address, Options{TLS: config, Token: "dst_wrong"}); !errors.Is(err, &Error{Name: "unauthenticated"}) {
		t.Error(err)
	}
	client := must(Dial(ctx, server.address, Options{TLS: config, Token: token.Token}))(t)
	defer client.Close()
	must(client.Send(ctx, &Message{Subject: "s"}))(t)
}
