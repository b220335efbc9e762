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
	server, err := launch(program, folder, settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.kill)
	return server
}

// launch starts a server on ports of its own, and returns when it is ready.
func launch(program, folder string, settings ...string) (*testServer, error) {
	arguments := []string{"serve", "--data-dir", folder, "--port", "0", "--http-port", "0"}
	for _, setting := range settings {
		arguments = append(arguments, "--set", setting)
	}
	server := &testServer{command: exec.Command(program, arguments...), log: &bytes.Buffer{}, copied: make(chan struct{})}
	server.command.Stderr = server.log
	output, err := server.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := server.command.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(output)
	for server.address == "" {
		line, err := lines.ReadString('\n')
		if found := readyLine.FindStringSubmatch(line); found != nil {
			server.address = found[1]
		} else if err != nil {
			server.kill()
			return nil, fmt.Errorf("the server did not start: %w\n%s", err, server.log)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		close(server.copied)
	}()
	return server, nil
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
	return dialed(t, server.address, Options{Name: "test"})
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
	server := startServer(t, t.TempDir(), "message.delay_levels=1s 5s")
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
		"published messages come with tag and order key":     checkPublish,
		"columns carry tags and order keys":                  checkTags,
		"transactions are committed, rolled back, asked for": checkTransactions,
		"a lease is extended":                                checkExtend,
		"a message that is given up is listed and resent":    checkDeadLetters,
		"a group seeks, is read beside, found and removed":   checkPositions,
		"a batch that is sent twice tells its duplicates":    checkDuplicates,
		"messages can be sent by delay level":                checkLevels,
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
		if acked := must(client.Ack(ctx, rows...))(t); acked != (Acked{Acked: len(rows)}) {
			t.Fatalf("%+v for %d", acked, len(rows))
		}
		all = append(all, rows...)
	}
	return all
}

func checkRoundTrip(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	message := &Message{Subject: "round", Body: []byte{0, 255}, Properties: map[string]string{"trace": "7"}}
	receipt := must(client.Send(ctx, message))(t).Receipt
	row := take(t, client, "round", "billing", 1)[0]
	serverID, dueMs, sequence, err := receipt.Parts()
	if err != nil || row.ServerID != serverID || row.DueMs != dueMs || row.Sequence != sequence || row.ID != message.ID ||
		!bytes.Equal(row.Body, message.Body) || row.Properties["trace"] != "7" || row.Attempt != 1 {
		t.Errorf("%+v of %s", row, receipt)
	}
	if again := must(client.Ack(ctx, row))(t); again != (Acked{Unknown: 1}) {
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
	if _, err := client.Send(ctx, &Message{Subject: "repeat", TellDuplicates: true}); err != errNoID {
		t.Error(err)
	}
	unasked := must(client.Send(ctx, message))(t)
	if unasked.Duplicate != nil {
		t.Errorf("%+v", unasked)
	}
	first := unasked.Receipt
	message.TellDuplicates = true
	again := must(dial(t, server).Send(ctx, message))(t)
	second := again.Receipt
	if again.Duplicate == nil || !*again.Duplicate || again.Original != first {
		t.Errorf("%+v", again)
	}
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
	receipt := must(client.Send(ctx, message))(t).Receipt
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
	other := must(client.Send(ctx, &Message{Subject: "later", Delay: time.Hour, ID: "o"}))(t).Receipt
	states := must(client.Cancel(ctx, other, other, "nonsense", NewReceipt("ffffffffffff", 0, 1), NewReceipt(client.Server().ID, other.Due().UnixMilli(), 1<<40)))(t)
	for row, want := range []any{Cancelled, AlreadyCancelled, ReceiptInvalid, ForeignReceipt, Unknown} {
		got := any(states[row].Outcome)
		if states[row].Err != nil {
			got = states[row].Err.Name
		}
		if got != want {
			t.Errorf("row %d: %v, want %v", row, got, want)
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
	if acked := must(client.Ack(ctx))(t); acked != (Acked{}) {
		t.Errorf("%+v", acked)
	}
}

func checkNack(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	must(client.Send(ctx, &Message{Subject: "nack", Body: []byte("x")}))(t)
	pull := Pull{Subject: "nack", Group: "billing", Wait: 20 * time.Second}
	first := must(client.Pull(ctx, pull))(t)[0]
	if nacked := must(client.Nack(ctx, NackOptions{Delay: AtOnce}, first))(t); nacked != (Nacked{Nacked: 1}) {
		t.Errorf("%+v", nacked)
	}
	second := must(client.Pull(ctx, pull))(t)[0]
	if second.ID != first.ID || second.Attempt != 2 {
		t.Errorf("%+v", second)
	}
	if nacked := must(client.Nack(ctx, NackOptions{}, second))(t); nacked.Nacked != 1 {
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
		name ErrorName
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
		{client.call(ctx, changesNothing, "nonsense", map[string]any{}, &struct{}{}), UnknownOperation},
	} {
		var named *Error
		if !errors.As(row.err, &named) || named.Name != row.name || named.Message == "" || named.Again() || !errors.Is(row.err, row.name) || !errors.Is(row.err, &Error{Name: row.name}) {
			t.Errorf("%v, want %s", row.err, row.name)
		}
	}
	if err := client.current.failure(); err != nil {
		t.Error(err)
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
	for len(client.current.pulls) == 0 {
		time.Sleep(time.Millisecond)
	}
	must(client.Ping(patient(t)))(t)
	cancel()
	err := <-ended
	var without *NoReplyError
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrConnectionLost) || !errors.As(err, &without) {
		t.Error(err)
	}
	for len(client.current.pulls) > 0 { // the place is free when the server has answered the pull, a minute early
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
				if _, err := client.Ack(ctx, rows[0]); err != nil {
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
	second := must(client.Pull(ctx, Pull{Subject: "grouped", Group: "billing", Wait: 20 * time.Second, Ack: []Received{first}}))(t)[0]
	if acked := must(client.Ack(ctx, first, second))(t); acked != (Acked{Acked: 1, Unknown: 1}) {
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
	receipt := must(client.Send(ctx, message))(t).Receipt
	ended := make(chan error)
	go func() {
		_, err := client.Pull(ctx, Pull{Subject: "killed", Group: "billing", Wait: time.Minute})
		ended <- err
	}()
	for len(client.current.pulls) == 0 {
		time.Sleep(time.Millisecond)
	}
	must(client.Ping(ctx))(t) // the pull is written before the ping, or waits for the writer; both end below
	server.kill()
	err := <-ended
	var without *NoReplyError
	if !errors.As(err, &without) || !errors.Is(err, ErrConnectionLost) {
		t.Fatal(err)
	}
	_, err = client.Send(ctx, message)
	var none *ConnectError
	if !errors.As(err, &without) || without.MaybeDone || !errors.Is(err, ErrConnectionLost) || !errors.As(err, &none) {
		t.Fatal(err)
	}
	again := dial(t, startServer(t, folder))
	if state := must(again.Lookup(ctx, receipt))(t)[0]; state.Outcome != Pending {
		t.Errorf("%+v", state)
	}
	repeated := must(again.Send(ctx, message))(t).Receipt
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
	if _, err := stranger.Send(ctx, &Message{Subject: "s"}); !errors.Is(err, &Error{Name: Unauthenticated}) {
		t.Error(err)
	}
	if _, err := Dial(ctx, server.address, Options{TLS: config, Token: "dst_wrong"}); !errors.Is(err, &Error{Name: Unauthenticated}) {
		t.Error(err)
	}
	client := must(Dial(ctx, server.address, Options{TLS: config, Token: token.Token}))(t)
	defer client.Close()
	must(client.Send(ctx, &Message{Subject: "s"}))(t)
}

func checkPublish(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	message := &Message{Subject: "published", Body: []byte("x"), ID: "p", Tag: "paid", OrderKey: "k", Properties: map[string]string{"a": "b"}}
	if got := must(client.Publish(ctx, message))(t); *got != (Published{"p", "published", 0}) {
		t.Errorf("%+v", got)
	}
	batch := &Batch{Subject: "published", Bodies: [][]byte{[]byte("y"), make([]byte, client.Server().Limits.BodyBytesMax+1), []byte("z")}, Tag: "paid"}
	sent := must(client.PublishColumns(ctx, batch))(t)
	if len(sent.Rejected) != 1 || !errors.Is(sent.Rejected[0].Err, MessageTooLarge) || fmt.Sprint(sent.Positions) != "[1 -1 2]" {
		t.Errorf("%+v", sent)
	}
	rows := take(t, client, "published", "billing", 3)
	if rows[0].Tag != "paid" || rows[0].OrderKey != "k" || rows[0].ID != "p" || rows[2].Tag != "paid" || rows[2].OrderKey != "" || rows[2].Position != 2 {
		t.Errorf("%+v", rows)
	}
	if _, err := client.Publish(ctx, &Message{Subject: "published", Delay: time.Second}); err == nil {
		t.Error("a published message has a delay")
	}
}

func checkTags(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	batch := &Batch{Subject: "tagged", Bodies: [][]byte{[]byte("0"), []byte("1"), []byte("2")}, Tags: []string{"paid", "", "new"},
		OrderKeys: []string{"", "k", "k"}}
	must(client.SendColumns(ctx, batch))(t)
	for _, row := range take(t, client, "tagged", "all", 3) {
		index := int(row.Body[0] - '0')
		if row.Tag != batch.Tags[index] || row.OrderKey != batch.OrderKeys[index] {
			t.Errorf("%+v", row)
		}
	}
	filtered := must(client.Pull(ctx, Pull{Subject: "tagged", Group: "new", Tags: "new", Max: 3, Wait: 20 * time.Second}))(t)
	if len(filtered) != 1 || filtered[0].Tag != "new" {
		t.Errorf("%+v", filtered)
	}
	_, err := client.Pull(ctx, Pull{Subject: "tagged", Group: "bad", Where: "price >"})
	var named *Error
	if !errors.As(err, &named) || named.Name != FilterInvalid || named.Line != 1 || named.Column != 8 {
		t.Errorf("%+v", err)
	}
}

func checkTransactions(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	terms := Transaction{Group: "shop", CheckAfter: time.Second, ChecksMax: Some(9), Policy: PolicyRollback}
	prepare := func() Receipt {
		return must(client.Prepare(ctx, terms, &Message{Subject: "prepared", Body: []byte("x"), Due: time.Now().Add(-time.Second)}))(t).Receipt
	}
	first, second := prepare(), prepare()
	open, next, err := client.OpenTransactions(ctx, "", 0)
	if err != nil || next != "" || len(open) != 2 || open[0].Receipt != first || open[1].Receipt != second {
		t.Errorf("%+v %q %v", open, next, err)
	}
	if pending := must(client.PendingBySubject(ctx))(t); len(pending) == 0 {
		t.Error("the prepared messages are pending")
	}
	if buckets := must(client.PendingByTime(ctx, ByMinute, time.Time{}, time.Time{}))(t); len(buckets) == 0 {
		t.Error("the prepared messages are pending")
	}
	if metrics := must(client.Metrics(ctx))(t); metrics.All["server_id"] != client.Server().ID || len(metrics.Stages) == 0 {
		t.Errorf("%+v", metrics)
	}
	if state := must(client.Lookup(ctx, first))(t)[0]; state.Outcome != Prepared {
		t.Errorf("%+v", state)
	}
	numbers := must(NumbersOf(first, second))(t)
	equal(t, must(client.LookupColumns(ctx, numbers))(t).Outcome, []string{Prepared, Prepared})
	if tokens := must(client.Tokens(ctx))(t); len(tokens) != 0 {
		t.Errorf("%+v", tokens)
	}
	rolled := must(client.Rollback(ctx, second, NewReceipt(client.Server().ID, first.Due().UnixMilli(), 1<<40)))(t)
	if rolled[0].Outcome != RolledBack || !errors.Is(rolled[1].Err, TransactionUnknown) {
		t.Errorf("%+v", rolled)
	}
	var check CheckBack
	for check.Transaction != first {
		asked := take(t, client, CheckSubject("shop"), "shop", 1)[0]
		var ok bool
		if check, ok = CheckBackOf(&asked); !ok {
			t.Fatalf("%+v", asked)
		}
	}
	if check.Subject != "prepared" || check.Check < 1 || check.ChecksMax != 9 || !check.Due.Equal(first.Due()) {
		t.Errorf("%+v", check)
	}
	committed := must(client.Commit(ctx, check.Transaction, second))(t)
	if committed[0].Outcome != Committed || !errors.Is(committed[1].Err, TransactionEnded) || committed[1].Err.Outcome != RolledBack {
		t.Errorf("%+v", committed)
	}
	row := take(t, client, "prepared", "billing", 1)[0]
	if NewReceipt(row.ServerID, row.DueMs, row.Sequence) != committed[0].NewReceipt {
		t.Errorf("%+v %+v", row, committed)
	}
	if _, ok := CheckBackOf(&row); ok {
		t.Error("an ordinary message is a check-back")
	}
	batch := must(client.PrepareColumns(ctx, terms, &Batch{Subject: "prepared", Bodies: [][]byte{[]byte("y")}}))(t)
	later := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	if ended := must(client.CommitAt(ctx, later, batch.Receipts...))(t); ended[0].DueMs != later.UnixMilli() {
		t.Errorf("%+v", ended)
	}
}

func checkExtend(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	must(client.Send(ctx, &Message{Subject: "extended", Body: []byte("x")}))(t)
	pull := Pull{Subject: "extended", Group: "billing", Wait: 20 * time.Second, Outlive: time.Minute}
	rows := must(client.Pull(ctx, pull))(t)
	if extended := must(client.Extend(ctx, ExtendOptions{AckTimeout: time.Hour}, rows...))(t); extended != (Extended{Extended: 1}) {
		t.Errorf("%+v", extended)
	}
	must(client.Ack(ctx, rows...))(t)
	if extended := must(client.Extend(ctx, ExtendOptions{}, rows...))(t); extended != (Extended{Unknown: 1}) {
		t.Errorf("%+v", extended)
	}
	// A consumer whose connection ends gives its message back, where the pull asked for it.
	must(client.Send(ctx, &Message{Subject: "extended", Body: []byte("x")}))(t)
	other := dial(t, server)
	pull.Outlive = time.Millisecond
	lost := must(other.Pull(ctx, pull))(t)
	other.Close()
	if again := take(t, client, "extended", "billing", 1)[0]; again.ID != lost[0].ID || again.Attempt != 2 {
		t.Errorf("%+v", again)
	}
}

func checkDeadLetters(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	policy := must(client.SetPolicy(ctx, "given-up", "billing", Policy{Attempts: Some(1), FirstMs: Some(int64(500))}))(t)
	if *policy.Policy.Attempts != 1 || policy.Applies.FirstMs != 500 || policy.Policy.Factor != nil {
		t.Errorf("%+v", policy)
	}
	for row := 0; row < 2; row++ {
		must(client.Send(ctx, &Message{Subject: "given-up", Body: []byte("x"), ID: fmt.Sprint(row)}))(t)
		first := must(client.Pull(ctx, Pull{Subject: "given-up", Group: "billing", Wait: 20 * time.Second}))(t)
		if nacked := must(client.Nack(ctx, NackOptions{Reason: "bad"}, first...))(t); nacked != (Nacked{Nacked: 1, DeadLettered: 1}) {
			t.Errorf("%+v", nacked)
		}
	}
	page := must(client.DeadLetters(ctx, "given-up", "billing", DeadLetterQuery{Bodies: true, Max: 1}))(t)
	if page.Left != 2 || page.Next == nil || len(page.Letters) != 1 || page.Letters[0].Text != "bad" || string(page.Letters[0].Body) != "x" {
		t.Fatalf("%+v", page)
	}
	resent := must(client.ResendDeadLetters(ctx, "given-up", "billing", ResendOptions{Positions: []int64{page.Letters[0].Position}}))(t)
	if resent.Resent != 1 || resent.Left != 1 {
		t.Errorf("%+v", resent)
	}
	if row := take(t, client, "given-up", "billing", 1)[0]; row.ID != "0" || row.Attempt != 1 {
		t.Errorf("%+v", row)
	}
	if dropped := must(client.DropDeadLetters(ctx, "given-up", "billing", DropOptions{}))(t); *dropped != (Dropped{Dropped: 1}) {
		t.Errorf("%+v", dropped)
	}
	if policy := must(client.ReplacePolicy(ctx, "given-up", "billing", Policy{Factor: Some(3.0)}))(t); policy.Policy.Attempts != nil || policy.Applies.Factor != 3 {
		t.Errorf("%+v", policy)
	}
	if policy := must(client.Policy(ctx, "given-up", "billing"))(t); *policy.Policy.Factor != 3 {
		t.Errorf("%+v", policy)
	}
}

func checkPositions(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	for row := 0; row < 3; row++ {
		message := &Message{Subject: "positions", Body: []byte("x"), ID: fmt.Sprint(row), Properties: map[string]string{"keys": "a k-" + fmt.Sprint(row)}}
		must(client.Publish(ctx, message))(t)
	}
	take(t, client, "positions", "billing", 3)
	if sought := must(client.Seek(ctx, "positions", "billing", AtPosition(1)))(t); *sought != (Sought{1, 0, 3}) {
		t.Errorf("%+v", sought)
	}
	if row := take(t, client, "positions", "billing", 1)[0]; row.ID != "1" {
		t.Errorf("%+v", row)
	}
	_, err := client.Seek(ctx, "positions", "billing", AtPosition(9))
	var named *Error
	if !errors.As(err, &named) || named.Name != PositionOutOfRange || named.End != 3 {
		t.Errorf("%+v", err)
	}
	if sought := must(client.Seek(ctx, "positions", "billing", AtTime(time.UnixMilli(5))))(t); sought.Position != 0 {
		t.Errorf("%+v", sought)
	}
	must(client.Seek(ctx, "positions", "billing", Latest))(t)
	if group := must(client.Group(ctx, "positions", "billing"))(t); group.Position != 3 || group.Lag != 0 {
		t.Errorf("%+v", group)
	}
	page := must(client.Read(ctx, Read{Subject: "positions", Position: 1, Max: 2}))(t)
	if page.Status != ReadFound || page.Next != 3 || len(page.Messages) != 2 || page.Messages[0].ID != "1" || page.Messages[1].Position != 2 {
		t.Errorf("%+v", page)
	}
	if page := must(client.Read(ctx, Read{Subject: "positions", Position: page.Next}))(t); page.Status != ReadNothingYet {
		t.Errorf("%+v", page)
	}
	if found := must(client.Find(ctx, Find{Key: "k-2", Subject: "positions"}))(t); len(found.Messages) != 1 || found.Messages[0].ID != "2" || found.Next != nil {
		t.Errorf("%+v", found)
	}
	if listed := must(client.Subjects(ctx, SubjectQuery{Prefix: "positions"}))(t); fmt.Sprint(listed.Subjects) != "[positions]" {
		t.Errorf("%+v", listed)
	}
	if node := must(client.KeyNode(ctx, "positions", "k"))(t); node == "" {
		t.Error("a key has no node")
	}
	if err := client.RemoveGroup(ctx, "positions", "billing"); err != nil {
		t.Error(err)
	}
	if _, err := client.Group(ctx, "positions", "billing"); !errors.Is(err, GroupUnknown) {
		t.Error(err)
	}
	latest := must(client.Pull(ctx, Pull{Subject: "positions", Group: "late", Start: Latest, Max: 9}))(t)
	if len(latest) != 0 {
		t.Errorf("%+v", latest)
	}
	if _, err := client.Pull(ctx, Pull{Subject: "positions", Group: "never", Start: AtPosition(1)}); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
	if none := must(client.Pull(ctx, Pull{Subject: "positions", Group: "everyone", Broadcast: true}))(t); len(none) != 0 {
		t.Errorf("%+v", none)
	}
	must(client.Publish(ctx, &Message{Subject: "positions", ID: "3"}))(t)
	if all := must(client.Pull(ctx, Pull{Subject: "positions", Group: "everyone", Broadcast: true, Wait: 20 * time.Second}))(t); len(all) != 1 || all[0].ID != "3" {
		t.Errorf("%+v", all)
	}
}

func checkDuplicates(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	first := must(client.SendColumns(ctx, &Batch{Subject: "twice", Bodies: [][]byte{nil}, IDs: []string{"b"}, Due: []time.Time{due}, TellDuplicates: true}))(t)
	if !first.DuplicatesKnown || len(first.Duplicates) != 0 {
		t.Errorf("%+v", first)
	}
	must(client.Cancel(ctx, first.Receipts...))(t)
	again := must(client.SendColumns(ctx, &Batch{Subjects: []string{"", "twice", "twice"}, Bodies: make([][]byte, 3), IDs: []string{"a", "a", "b"}, Due: []time.Time{due, due, due}, TellDuplicates: true}))(t)
	if !again.DuplicatesKnown || len(again.Duplicates) != 1 || again.Duplicates[0] != (Duplicate{2, first.Receipts[0], Cancelled}) {
		t.Errorf("%+v", again)
	}
}

func checkLevels(t *testing.T, server *testServer, client *Client) {
	ctx := patient(t)
	levels := client.Server().DelayLevelsMs
	if fmt.Sprint(levels) != "[1000 5000]" {
		t.Fatal(levels)
	}
	message := &Message{Subject: "level", DelayLevel: 2}
	before := must(client.Ping(ctx))(t)
	if err := client.Resolve(ctx, message); err != nil || message.Due.Before(before.Add(4*time.Second)) || message.DelayLevel != 0 {
		t.Error(message, err)
	}
	if err := client.Resolve(ctx, &Message{Subject: "level", DelayLevel: 3}); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
}

func TestAClientGoesOnAtAnotherAddressWhenItsServerIsKilled(t *testing.T) {
	first, second := startServer(t, t.TempDir()), startServer(t, t.TempDir())
	client := dialed(t, first.address+","+second.address, Options{})
	ctx := patient(t)
	message := &Message{Subject: "moves", Body: []byte("x")}
	receipt := must(client.Send(ctx, message))(t).Receipt
	rows := must(client.Pull(ctx, Pull{Subject: "moves", Group: "billing", Wait: 20 * time.Second}))(t)
	before := client.Server().ID
	first.kill()
	again := must(client.Send(ctx, message))(t).Receipt
	if client.Address() != second.address || client.Server().ID == before || again == receipt || again.Due() != receipt.Due() {
		t.Error(client.Address(), receipt, again)
	}
	// Its leases are at the server that is gone. The same numbers at the new one would be other messages.
	if acked := must(client.Ack(ctx, rows...))(t); acked != (Acked{Unknown: 1}) {
		t.Errorf("%+v", acked)
	}
	take(t, client, "moves", "billing", 1)
}
